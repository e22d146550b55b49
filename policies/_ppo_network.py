"""Actor and critic over the set of all prompts (Li et al., Active Evaluation Acquisition, appendix B).

Every prompt is an element: its frozen representation, its score or a learned "unknown" vector, and what the
estimator says of it. One induced set layer and attention pooling (Lee et al., Set Transformer, 2019) give the
state; only the pooled state is wanted, so the induced points are pooled without going back to the elements.
The actor turns the state into a vector h; P(i) is the softmax over the candidates of a_i . h, where a_i is
the prompt's representation and auxiliary information. Prompts added after training can be chosen, as nothing
here belongs to a prompt.

The critic is used in training only, so it may know what the actor may not: how far off the estimate is. The
value of a potential-shaped state is lower by its potential (Ng et al., 1999); a critic that cannot see the
potential takes all of it for noise.

Shapes: B states, N prompts, F length of a representation, W width, P induced points.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies._ppo_view import AUXILIARY, View

__all__ = ["ActorCritic"]

X_SIZE, Y_SIZE = 16, 16  # representation dimensions of table B.1
HEADS, POINTS = 4, 8


class Pool(nn.Module):
    """P learned points attend to a set, with residual connections and layer norms (MAB)."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, width) / math.sqrt(width))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.feed = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, W) to (B, P, W)."""
        points = self.points.expand(len(x), -1, -1)
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.query(points), self.key(x), self.value(x))
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        found = points + self.out(mixed)
        return cast("Tensor", found + functional.gelu(self.feed(self.norm(found))))


class ActorCritic(nn.Module):
    """The policy network.

    Args:
        size: F.
        width: W.
        auxiliary: Whether the estimator's word is heard at all (False for the ablation).
        prior: The actor's weight on the log expected gain before any training.
    """

    def __init__(self, size: int, width: int, *, auxiliary: bool, prior: float) -> None:
        super().__init__()
        self.size, self.auxiliary = size, auxiliary
        extra = AUXILIARY if auxiliary else 0
        self.x_layer = nn.Linear(size, X_SIZE)
        self.y_layer = nn.Linear(1, Y_SIZE)
        self.unknown = nn.Parameter(torch.randn(Y_SIZE) / math.sqrt(Y_SIZE))
        self.enter = nn.Linear(X_SIZE + Y_SIZE + extra, width)
        self.gather, self.pool = Pool(width, POINTS), Pool(width, 1)
        self.actor = nn.Linear(width + 2, size + extra)
        self.critic = nn.Sequential(nn.Linear(width + 3, width), nn.Tanh(), nn.Linear(width, 1))
        nn.init.zeros_(self.actor.weight)
        nn.init.zeros_(self.actor.bias)
        if auxiliary:  # begins as a soft form of expected variance reduction, which training then improves
            with torch.no_grad():
                self.actor.bias[-1] = prior

    def forward(self, view: View, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's vector h (B, F + auxiliary) and the critic's V(s) (B,) of B states.

        Args:
            view: The states.
            vectors: (N, F) the prompts' representations.
        """
        x = self.x_layer(vectors).expand(len(view.scores), -1, -1)
        y = torch.where(view.known[:, :, None], self.y_layer(view.scores[:, :, None]), self.unknown)
        parts = [x, y]
        if self.auxiliary:
            parts += [view.auxiliary, view.gain[:, :, None]]
        elements = functional.gelu(self.enter(torch.cat(parts, dim=-1)))
        pooled = self.pool(self.gather(elements))[:, 0]
        progress = view.progress if self.auxiliary else view.progress * torch.tensor([1.0, 0.0])
        state = torch.cat([pooled, progress], dim=-1)
        judged = torch.cat([state, view.truth[:, None]], dim=-1)
        return self.actor(state), self.critic(judged)[:, 0]

    def logits(self, h: Tensor, view: View, vectors: Tensor) -> Tensor:
        """(B, N) a_i . h but for the gain, which changes inside a batch: see `gain_weight`."""
        result = h[:, : self.size] @ vectors.T
        if self.auxiliary:
            result = result + (view.auxiliary @ h[:, self.size : -1, None])[:, :, 0]
        return result

    def gain_weight(self, h: Tensor) -> Tensor:
        """(B,) factor of the log gain in the logits."""
        return h[:, -1] if self.auxiliary else torch.zeros(len(h))
