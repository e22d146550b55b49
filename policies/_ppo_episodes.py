"""Episodes of acquisition over history rows, many at a time: the learned policy's environment.

The true scores are known, so every answer is at hand and every reward can be worked out. Rewards come from
estimators that have not learned from the episode's row (cross-fitting): an estimator that remembers a row
predicts it well whatever is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.matrix import ScoreMatrix
from estimators import Estimator
from policies._ppo_network import ActorCritic
from policies._ppo_view import Lookahead, View, look, relative_gain

__all__ = ["Crossfit", "Potential", "Rollout", "choose", "draw_rows", "log_shares", "potential", "roll_out"]

Floats = NDArray[np.float64]
Potential = Literal["score", "mse"]


@dataclass(frozen=True)
class Crossfit:
    """History rows and an estimator that has not learned from them.

    Attributes:
        estimator: Fitted on other rows.
        rows: The rows to play.
    """

    estimator: Estimator
    rows: ScoreMatrix


class Rollout(NamedTuple):
    """Transitions of B episodes of T decisions, b prompts each, decision by decision.

    Attributes:
        views: What was seen, T * B states.
        gains: (T * B, b, N) log gain before each prompt of the decision.
        actions: (T * B, b) the prompts chosen.
        log_probability: (T * B,) of the decision.
        values: (T + 1, B) the critic's V(s), 0 at the end.
        rewards: (T, B).
        error: Mean absolute error of the benchmark score at the end.
        path_error: The same, over all that followed the first decision.
    """

    views: View
    gains: Tensor
    actions: Tensor
    log_probability: Tensor
    values: Tensor
    rewards: Tensor
    error: float
    path_error: float


def potential(kind: Potential, mean: Floats, observed: Floats, truth: Floats, weights: Floats) -> Floats:
    """(B,) how good it is to know what is known; a step's reward is the rise of it (eq. 8).

    "mse" is the paper's: minus the mean squared error of prediction per unobserved prompt. "score" is minus
    the absolute error of the benchmark score, which is what a study is about.

    Args:
        kind: Which of the two.
        mean: (B, N) predicted scores.
        observed: (B, N) known scores, NaN = unknown.
        truth: (B, N) true scores, NaN where missing.
        weights: (N,) prompt weights.
    """
    gap = np.where(np.isnan(truth), 0.0, mean - np.nan_to_num(truth))
    if kind == "mse":
        left = np.isnan(observed) & ~np.isnan(truth)
        mse: Floats = np.where(left, gap**2, 0.0).sum(axis=1) / np.maximum(left.sum(axis=1), 1)
        return -mse
    present = (~np.isnan(truth)) @ weights
    gap = np.where(np.isnan(observed), gap, 0.0)
    error: Floats = np.abs(gap @ weights) / np.maximum(present, 1e-9)
    return -error


def choose(
    network: ActorCritic,
    view: View,
    h: Tensor,
    vectors: Tensor,
    count: int,
    gains_after: Callable[[Tensor], Tensor],
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose `count` prompts of each row, one after the other, each as if those before were answered.

    Args:
        network: Actor and critic.
        view: B rows.
        h: (B, ...) the actor's vectors.
        vectors: (N, F) representations.
        count: Prompts per row; every row must have that many candidates.
        gains_after: Takes one prompt of each row (B,) and gives the log gains (B, N) of the rest.
        generator: Draws from the softmax; None chooses the likeliest.

    Returns:
        Prompts (B, count) and the log gains before each, (B, count, N).
    """
    base, factor = network.logits(h, view, vectors), network.gain_weight(h)[:, None]
    free, gain = view.free.clone(), view.gain
    actions, gains = [], []
    for left in range(count, 0, -1):
        logits = (base + factor * gain).masked_fill(~free, -torch.inf)
        # Rounded, so that rows asked about together or alone do not differ in the last digits.
        noisy = logits + _gumbel(logits, generator) if generator else logits.mul(1e4).round()
        column = noisy.argmax(1)
        actions.append(column)
        gains.append(gain)
        free = free.scatter(1, column[:, None], False)
        if left > 1:
            gain = gains_after(column)
    return torch.stack(actions, dim=1), torch.stack(gains, dim=1)


def log_shares(
    network: ActorCritic, h: Tensor, view: View, gains: Tensor, actions: Tensor, vectors: Tensor
) -> Tensor:
    """(B, b, N) log probability of every prompt before each choice of a decision; -inf where it was taken."""
    logits = network.logits(h, view, vectors)[:, None] + network.gain_weight(h)[:, None, None] * gains
    earlier = torch.zeros_like(gains, dtype=torch.bool)
    for place in range(1, actions.shape[1]):
        earlier[:, place] = earlier[:, place - 1].scatter(1, actions[:, place - 1, None], True)
    closed = earlier | ~view.free[:, None]
    return torch.log_softmax(logits.masked_fill(closed, -torch.inf), dim=-1)


@torch.no_grad()
def roll_out(
    network: ActorCritic,
    vectors: Tensor,
    estimator: Estimator,
    truth: Floats,
    weights: Floats,
    *,
    prompts: int,
    batch: int,
    kind: Potential,
    scale: float,
    intermediate: bool,
    generator: torch.Generator | None,
) -> Rollout:
    """Play one episode per row, all side by side.

    Args:
        network: Actor and critic.
        vectors: (N, F) representations.
        estimator: Judges the rows, which it has not learned from.
        truth: (B, N) true scores, NaN where missing.
        weights: (N,) prompt weights, summing to 1.
        prompts: Prompts acquired per episode; T = prompts / batch, rounded up.
        batch: b, prompts per decision.
        kind: Which potential.
        scale: Rewards are multiplied by it.
        intermediate: Reward every decision; False gives all of it at the end.
        generator: Draws the prompts; None takes the likeliest.
    """
    observed = np.full_like(truth, np.nan)
    present = torch.from_numpy(~np.isnan(truth))
    most = min(prompts, int(present.sum(1).min()))
    batch = min(batch, most)
    views, gains, actions, chances, values, levels, missed = [], [], [], [], [], [], []
    for _ in range(most // batch):
        free = present & torch.from_numpy(np.isnan(observed))
        view, ahead, mean = look(estimator, observed, free, weights)
        levels.append(potential(kind, mean, observed, truth, weights) * scale)
        missed.append(-potential("score", mean, observed, truth, weights).mean())
        view = view._replace(truth=torch.from_numpy(levels[-1]).float())
        h, value = network(view, vectors)
        after = partial(_gains_after, ahead, free)
        taken, gain = choose(network, view, h, vectors, batch, after, generator)
        shares = log_shares(network, h, view, gain, taken, vectors)
        views.append(view)
        gains.append(gain)
        actions.append(taken)
        chances.append(shares.gather(2, taken[:, :, None])[:, :, 0].sum(1))
        values.append(value)
        np.put_along_axis(observed, taken.numpy(), np.take_along_axis(truth, taken.numpy(), 1), 1)
    mean = estimator.predict(observed).mean
    levels.append(potential(kind, mean, observed, truth, weights) * scale)
    missed.append(-potential("score", mean, observed, truth, weights).mean())
    return Rollout(
        View.join(views),
        torch.cat(gains),
        torch.cat(actions),
        torch.cat(chances),
        torch.stack([*values, torch.zeros(len(truth))]),
        _rewards(levels, intermediate=intermediate),
        float(missed[-1]),
        float(np.mean(missed[1:])),
    )


def _rewards(levels: list[Floats], *, intermediate: bool) -> Tensor:
    """(T, B) rises of the potential, or all of them together at the end."""
    rises = torch.from_numpy(np.diff(np.stack(levels), axis=0)).float()
    return rises if intermediate else torch.cat([torch.zeros_like(rises[:-1]), rises.sum(0, keepdim=True)])


def _gains_after(ahead: Lookahead, free: Tensor, columns: Tensor) -> Tensor:
    """(B, N) log gains once one more prompt of each row is counted as answered."""
    ahead.take(columns)
    return relative_gain(ahead, free, None)


def _gumbel(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Noise whose sum with the logits is largest where a draw from their softmax falls."""
    uniform = torch.rand(logits.shape, generator=generator).clamp(1e-9, 1 - 1e-7)
    return -torch.log(-torch.log(uniform))


def draw_rows(rows: ScoreMatrix, episodes: int, generator: torch.Generator) -> Floats:
    """(B, N) true scores of random rows, those without any score left out."""
    usable = np.flatnonzero(rows.observed.any(axis=1))
    picked = torch.randint(len(usable), (episodes,), generator=generator).numpy()
    values: Floats = rows.values[usable[picked]].astype(np.float64)
    return values
