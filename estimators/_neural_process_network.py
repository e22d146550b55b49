"""The attentive latent neural process as a network (Li et al., sec. 2.2 and appendix A; Kim et al., 2019).

Prior and posterior share one encoder over a set of (prompt, score) pairs; a decoder attends from every prompt
to the observed pairs. Two documented additions give the network the inductive bias of a factor model:

- the latent's Gaussian starts from the exact posterior of a logistic factor model whose item parameters are
  learned with the network; the encoder's pooled output shifts and scales it;
- the sampled latent enters the logits by a bilinear head, logit_j = d_j + (a_j + delta_j) . z + r_j, where
  the attentive decoder gives delta_j and r_j. One decoder pass then serves any number of latent samples.

Shapes: B rows, N prompts, T targets, C context pairs (padded), L latent dimensions, W feature width.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ContextSet", "Gaussian", "Logits", "NeuralProcessNetwork", "Shape"]


@dataclass(frozen=True)
class Shape:
    """Sizes that decide the network's parameters (table A.1 of the paper).

    Attributes:
        prompts: N.
        features: Length of a prompt's feature vector.
        tokens: Entries of the embedding table for discrete scores.
        types: Score types present; an embedding of the type is added where there are several.
        latent: L, also the rank of the factor path.
        width: W of the set layers.
        heads: Attention heads.
        induced: Learned induced points of each set layer.
        layers: Set layers in the encoder, and again in the decoder.
        x_size: Length of a prompt's representation.
        y_size: Length of a score's representation.
        attentive: False replaces set layers and attention pooling by linear ones (for few models).
        direct: False removes the factor path (for ablations).
    """

    prompts: int
    features: int
    tokens: int
    types: int
    latent: int
    width: int
    heads: int
    induced: int
    layers: int
    x_size: int
    y_size: int
    attentive: bool
    direct: bool

    def as_numbers(self) -> list[int]:
        """All sizes as integers, in the order of the fields."""
        return [int(value) for value in asdict(self).values()]

    @classmethod
    def from_numbers(cls, numbers: list[int]) -> Self:
        """Undo `as_numbers`."""
        sizes: dict[str, Any] = dict(zip(cls.__dataclass_fields__, numbers, strict=True))
        return cls(**sizes | {"attentive": bool(numbers[-2]), "direct": bool(numbers[-1])})


class ContextSet(NamedTuple):
    """Observed pairs of B rows, padded to the longest.

    Attributes:
        columns: (B, C) prompt of each pair.
        scores: (B, C) score of each pair.
        mask: (B, C) False where padded.
    """

    columns: Tensor
    scores: Tensor
    mask: Tensor


class Gaussian(NamedTuple):
    """Gaussians over the latent; covariance = root @ root'.

    Attributes:
        mean: (B, L).
        root: (B, L, L).
        inverse: (B, L, L) inverse of the root.
        log_determinant: (B,) of the covariance.
    """

    mean: Tensor
    root: Tensor
    inverse: Tensor
    log_determinant: Tensor


class Items(NamedTuple):
    """Item parameters of the context pairs, how far each is trusted, and trust times (score - 1/2)."""

    loadings: Tensor
    intercepts: Tensor
    trust: Tensor
    gain: Tensor


class Logits(NamedTuple):
    """What the decoder says of T prompts: the logit is linear in the latent.

    Attributes:
        offset: (B, T) part that does not depend on the latent.
        slope: (B, T, L) factor of the latent.
        log_concentration: (B, T) of the Beta distribution of real scores.
    """

    offset: Tensor
    slope: Tensor
    log_concentration: Tensor


class Residual(nn.Module):
    """x + two linear layers of layer-normalised x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., W) to (..., W); the mask is ignored, as elements do not see each other."""
        return x + cast("Tensor", self.outer(functional.gelu(self.inner(self.norm(x)))))


class Attention(nn.Module):
    """Multi-head attention, optionally with the query added to the answer (MAB of Lee et al., 2019)."""

    def __init__(self, query: int, key: int, value: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(query, width), nn.Linear(key, width)
        self.value, self.out = nn.Linear(value, width), nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, q), (B, C, k), (B, C, v) to (B, T, W); `mask` (B, C) is False for keys to leave out."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(query), self.key(key), self.value(value))
        )
        allowed = None if mask is None else mask[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return cast("Tensor", self.out(mixed.transpose(1, 2).flatten(2)))


class SetBlock(nn.Module):
    """MAB: attention from x to y with residual connections and layer norms."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_x, self.norm_y = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, width, width, width, heads)
        self.feed = Residual(width)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, W) attending to (B, C, W)."""
        keys = self.norm_y(y)
        return cast("Tensor", self.feed(x + self.attention(self.norm_x(x), keys, keys, mask)))


class InducedSetLayer(nn.Module):
    """ISAB: elements attend to learned points, which attend to the elements; cost linear in the set."""

    def __init__(self, width: int, heads: int, induced: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, induced, width) / math.sqrt(width))
        self.gather, self.spread = SetBlock(width, heads), SetBlock(width, heads)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, W) to (B, T, W), equivariant under permutations of the T elements."""
        points = self.gather(self.points.expand(len(x), -1, -1), x, mask)
        return cast("Tensor", self.spread(x, points))


class AttentionPool(nn.Module):
    """PMA: one learned seed attends to the set."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.seed = nn.Parameter(torch.randn(1, 1, width) / math.sqrt(width))
        self.block = SetBlock(width, heads)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, W) to (B, W)."""
        return cast("Tensor", self.block(self.seed.expand(len(x), -1, -1), x, mask)[:, 0])


class MeanPool(nn.Module):
    """The masked mean of the set: pooling where models are few."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, W) to (B, W)."""
        weight = mask.to(x.dtype)[:, :, None]
        return (x * weight).sum(1) / weight.sum(1)


class NeuralProcessNetwork(nn.Module):
    """Encoder (prior and posterior) and decoder; see the module's text.

    Args:
        shape: Sizes.
    """

    features: Tensor
    token_base: Tensor
    token_steps: Tensor
    type_index: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        n, width = shape.prompts, shape.width
        self.register_buffer("features", torch.zeros(n, shape.features))
        # A discrete score y of prompt j is entry token_base[j] + round(y * token_steps[j]) of the table.
        self.register_buffer("token_base", torch.zeros(n, dtype=torch.long))
        self.register_buffer("token_steps", torch.ones(n))
        self.register_buffer("type_index", torch.zeros(n, dtype=torch.long))
        self.loadings = nn.Parameter(torch.zeros(n, shape.latent))
        self.intercepts = nn.Parameter(torch.zeros(n))
        self.log_trust = nn.Parameter(torch.zeros(3))
        self.log_concentration = nn.Parameter(torch.zeros(3))
        self._encoder(width)
        self._decoder(width)

    def _encoder(self, width: int) -> None:
        s = self.shape
        kind = 4 if s.types > 1 else 0
        self.type_embedding = nn.Embedding(3, kind) if kind else None
        self.x_layer = nn.Linear(s.features, s.x_size)
        self.y_real = nn.Linear(1, s.y_size)
        self.y_table = nn.Embedding(s.tokens, s.y_size)
        self.enter = nn.Linear(s.x_size + s.y_size + kind + 2, width)
        self.nothing = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = nn.ModuleList(self._layer() for _ in range(s.layers))
        self.pool = AttentionPool(width, s.heads) if s.attentive else MeanPool()
        self.moments = _zero(nn.Linear(width, 2 * s.latent))

    def _decoder(self, width: int) -> None:
        s = self.shape
        self.no_key = nn.Parameter(torch.zeros(1, 1, s.x_size))
        heads = s.heads if s.attentive else 1
        self.cross = Attention(s.x_size, s.x_size, width, width, heads)
        self.mix = nn.Linear(width + s.x_size + s.latent + 2, width)
        self.decoder = nn.ModuleList(self._layer() for _ in range(s.layers))
        self.head = _zero(nn.Linear(width, s.latent + 2))

    def _layer(self) -> nn.Module:
        s = self.shape
        return InducedSetLayer(s.width, s.heads, s.induced) if s.attentive else Residual(s.width)

    def prompts(self) -> Tensor:
        """(N, x_size) representation of every prompt."""
        return cast("Tensor", self.x_layer(self.features))

    def encode(self, context: ContextSet) -> tuple[Gaussian, Tensor]:
        """Gaussian over the latent given pairs, and their features (B, C + 1, W), the first being "nothing".

        Eq. 2's prior where the pairs are the context; eq. 3's posterior where they are context and targets.
        """
        start = self._factor_posterior(context)
        tokens = self.enter(self._pairs(context, start))
        tokens = torch.cat([self.nothing.expand(len(tokens), -1, -1), tokens], dim=1)
        mask = functional.pad(context.mask, (1, 0), value=True)
        for layer in self.encoder:
            tokens = layer(tokens, mask)
        shift, scale = self.moments(self.pool(tokens, mask)).chunk(2, dim=-1)
        return _refine(start, shift, 3.0 * torch.tanh(scale / 3.0)), tokens

    def _pairs(self, context: ContextSet, start: Gaussian) -> Tensor:
        """(B, C, ...) of each pair: prompt, score, type, and how it compares with the factor path."""
        index, scores, _ = context
        discrete = self.y_table(self.token_base[index] + torch.round(scores * self.token_steps[index]).long())
        real = self.y_real(scores[:, :, None])
        kind = self.type_index[index]
        parts = [self.prompts()[index], torch.where((kind == 1)[:, :, None], real, discrete)]
        if self.type_embedding is not None:
            parts.append(self.type_embedding(kind))
        mean, spread = self._factor_logit(start, index)
        expected = torch.sigmoid(mean / torch.sqrt(1 + math.pi / 8 * spread))
        parts.append(torch.stack([scores - expected, mean / 4], dim=-1))
        return torch.cat(parts, dim=-1)

    def decode(
        self, index: Tensor, targets: Tensor, context: ContextSet, tokens: Tensor, prior: Gaussian
    ) -> Logits:
        """Logits of T prompts per row given the encoded context.

        Args:
            index: (B, T) prompts.
            targets: (B, T) False for prompts that the others must not look at (padding, or observed).
            context: The observed pairs.
            tokens: What `encode` gave for them.
            prior: The same, the latent's Gaussian.
        """
        prompts = self.prompts()
        x = prompts[index]
        keys = torch.cat([self.no_key.expand(len(x), -1, -1), prompts[context.columns]], dim=1)
        attended = self.cross(x, keys, tokens, functional.pad(context.mask, (1, 0), value=True))
        mean, spread = self._factor_logit(prior, index)
        known = torch.stack([mean / 4, torch.log1p(spread)], dim=-1)
        latent = prior.mean[:, None].expand(-1, x.shape[1], -1)
        hidden = self.mix(torch.cat([attended, x, latent, known], dim=-1))
        for layer in self.decoder:
            hidden = layer(hidden, targets)
        slope, offset, concentration = self.head(hidden).split([self.shape.latent, 1, 1], dim=-1)
        return Logits(
            offset[:, :, 0] + self.intercepts[index],
            slope + self.loadings[index],
            concentration[:, :, 0] + self.log_concentration[self.type_index[index]],
        )

    def _factor_logit(self, latent: Gaussian, index: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (B, T) of the factor path's logits."""
        loadings = self.loadings[index]
        mean = (loadings @ latent.mean[:, :, None])[:, :, 0] + self.intercepts[index]
        return mean, (loadings @ latent.root).square().sum(-1)

    def _factor_posterior(self, context: ContextSet, sweeps: int = 4) -> Gaussian:
        """The factor model's posterior by the bound; gradients flow through the last sweep."""
        rows, latent = len(context.columns), self.shape.latent
        if not self.shape.direct:
            identity = torch.eye(latent, device=context.columns.device).expand(rows, -1, -1)
            zero = torch.zeros(rows, latent, device=context.columns.device)
            return Gaussian(zero, identity, identity, zero[:, 0])
        loadings, intercepts = self.loadings[context.columns], self.intercepts[context.columns]
        trust = torch.exp(self.log_trust)[self.type_index[context.columns]] * context.mask
        items = Items(loadings, intercepts, trust, trust * (context.scores - 0.5))
        with torch.no_grad():
            bound = _bound(torch.sqrt(intercepts**2 + loadings.square().sum(-1)))
            for _ in range(sweeps - 1):
                state = _sweep(items, bound)
                mean = (loadings @ state.mean[:, :, None])[:, :, 0] + intercepts
                bound = _bound(torch.sqrt(mean**2 + (loadings @ state.root).square().sum(-1)))
        return _sweep(items, bound)


def _sweep(items: Items, bound: Tensor) -> Gaussian:
    """One Gaussian update of the latent: precision I + sum_i 2 lambda_i a_i a_i'."""
    a, weight = items.loadings, items.trust * bound
    rows, _, latent = a.shape
    identity = torch.eye(latent, device=a.device).expand(rows, -1, -1)
    lower = torch.linalg.cholesky(identity + a.transpose(1, 2) @ (weight[:, :, None] * a))
    right = a.transpose(1, 2) @ (items.gain - weight * items.intercepts)[:, :, None]
    upper = lower.transpose(1, 2)
    root = torch.linalg.solve_triangular(upper, identity, upper=True)
    mean = torch.cholesky_solve(right, lower)[:, :, 0]
    return Gaussian(mean, root, upper, -2 * lower.diagonal(dim1=1, dim2=2).log().sum(-1))


def _refine(start: Gaussian, shift: Tensor, log_scale: Tensor) -> Gaussian:
    """Move and scale a Gaussian in its own coordinates: mean + root shift, root diag(exp(log_scale / 2))."""
    half = torch.exp(log_scale / 2)
    mean = start.mean + (start.root @ shift[:, :, None])[:, :, 0]
    return Gaussian(
        mean,
        start.root * half[:, None, :],
        start.inverse / half[:, :, None],
        start.log_determinant + log_scale.sum(-1),
    )


def _bound(xi: Tensor) -> Tensor:
    """tanh(xi / 2) / (2 xi): curvature of the logistic bound, 1/4 at 0."""
    xi = xi.clamp_min(1e-4)
    return torch.tanh(xi / 2) / (2 * xi)


def _zero(layer: nn.Linear) -> nn.Linear:
    """A layer that answers 0 at first, so that training starts at the factor model."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
