"""How hard it is to find the best of some methods, and which policy fits.

Source: Zhou et al., *On Speeding Up Language Model Evaluation*, corollary 1 and section 4.4 (after Audibert
and Bubeck, 2010).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from assay.errors import BadInputError
from policies._base import Recommendation

__all__ = ["Advice", "advise", "best_exploration", "expected_regret", "hardness", "success_bound"]

EASY = 10_000.0  # UCB-E won on the paper's sets up to 4,462, UCB-E-LRF on those from 66,284 on
HARD = 30_000.0
LEAST_HISTORY = 50  # rows from which an estimator of other methods' scores has been seen to help


def hardness(means: NDArray[np.float64], *, resolution: float = 1e-4) -> float:
    """H1 = sum over i != i* of 1 / (mu_i* - mu_i)^2.

    Args:
        means: (R,) scores of the methods, R >= 2.
        resolution: Smaller gaps count as this large: telling equals apart is never worth any budget.
    """
    means = np.asarray(means, dtype=np.float64)
    if means.ndim != 1 or len(means) < 2 or not np.isfinite(means).all():
        raise BadInputError(f"hardness needs the finite scores of two methods or more, got {means.shape}")
    best = int(means.argmax())
    gaps = np.maximum(means[best] - np.delete(means, best), resolution)
    return float((1.0 / gaps**2).sum())


def success_bound(h1: float, methods: int, cells: int) -> float:
    """Corollary 1: UCB-E with the best a names the best method at least this often (0 where it says nothing).

    Args:
        h1: Hardness.
        methods: m, how many methods.
        cells: T, how many cells may be bought.
    """
    bound = 1.0 - 2.0 * cells * methods * np.exp(-(cells - methods) / (18.0 * h1))
    return float(np.clip(bound, 0.0, 1.0))


def best_exploration(h1: float, methods: int, cells: int) -> float:
    """The a of corollary 1: 25 / 36 (T - m) / H1."""
    return max(0.0, 25.0 / 36.0 * (cells - methods) / h1)


def expected_regret(belief: Recommendation) -> float:
    """How far the named row's score is expected to lie below the best one's: E[max] - mean of the named.

    The rows' scores are taken as independent normal variables: E[max] = x0 + integral from x0 of
    (1 - prod F_j(x)) dx, x0 being below all that the best row may score.
    """
    std = np.maximum(belief.std, 1e-9)
    lowest = float((belief.mean - 8.0 * std).max())
    points = belief.mean[:, None] + std[:, None] * np.linspace(-8.0, 8.0, 81)
    grid = np.unique(np.append(points[points > lowest], lowest))
    below = np.exp(np.log(np.maximum(ndtr((grid - belief.mean[:, None]) / std[:, None]), 1e-300)).sum(axis=0))
    largest = lowest + float(np.trapezoid(1.0 - below, grid))
    return max(0.0, largest - float(belief.mean[belief.best]))


@dataclass(frozen=True)
class Advice:
    """Which policy to use.

    Attributes:
        policy: Registered name.
        reason: Why, in one sentence for a user.
        h1: The hardness that it rests on; NaN where nothing is known of the methods yet.
    """

    policy: str
    reason: str
    h1: float


def advise(*, history_rows: int, linearizes: bool, belief: Recommendation | None = None) -> Advice:
    """Which policy fits a study of the objective "best".

    Args:
        history_rows: Complete or nearly complete rows of other methods on the same prompts.
        linearizes: Whether the chosen estimator has a posterior to linearise.
        belief: What is known of the methods so far, from a pilot; None = nothing.
    """
    h1 = float("nan") if belief is None else hardness(belief.mean)
    if history_rows >= LEAST_HISTORY and linearizes:
        return Advice(
            "top-two",
            f"{history_rows} other methods were scored on these prompts: what they got right predicts most"
            " scores of the new ones",
            h1,
        )
    if belief is None:
        return Advice("ucb-e", "nothing is known of the methods yet, and ucb-e is never far off", h1)
    if h1 <= EASY:
        return Advice("ucb-e", f"the best method stands out (H1 = {h1:,.0f})", h1)
    if h1 >= HARD:
        return Advice(
            "ucb-e-lrf", f"several methods are close to the best (H1 = {h1:,.0f}): predictions help", h1
        )
    return Advice(
        "ucb-e", f"moderately hard (H1 = {h1:,.0f}): ucb-e and ucb-e-lrf are alike, ucb-e is simpler", h1
    )
