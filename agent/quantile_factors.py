"""By how much the intervals of a distribution's quantiles are stretched: learned by rehearsing on history.

Groups of history rows are studied as the rows of a study would be, with an estimator that has not learned
from them; how far each quantile's estimate was off, in half-widths of its interval, gives the factor that
makes the intervals cover as often as they say (split conformal prediction, per budget and quantile).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from agent.cells import replay_cells
from assay.matrix import ScoreMatrix
from estimators import Estimator
from estimators.distribution import QUANTILES, quantiles_of, score_distribution
from policies import Policy

__all__ = ["learn_factors"]

FOLDS = 2
DRAWS = 200
LEAST_HALF_WIDTH = 1e-6
MOST = 10.0


def learn_factors(
    history: ScoreMatrix,
    estimator: Estimator,
    policy: Callable[[], Policy],
    *,
    rows: int,
    budgets: Sequence[int],
    batch: int,
    level: float,
    groups: int = 20,
    seed: int = 0,
    at: Sequence[float] = QUANTILES,
) -> NDArray[np.float64] | None:
    """Factors (len(budgets), len(at)) for `ScoreDistribution.intervals`; None where the history is too small.

    Args:
        history: (M, N) complete rows count; at least three times `rows` of them are needed.
        estimator: Fitted; refitted on each half of the history to be tried on groups of the other half.
        policy: Makes a fresh policy.
        rows: Rows of a study.
        budgets: Cells of a study, ascending.
        batch: Cells per decision.
        level: Level of the intervals.
        groups: Rehearsals per half.
        seed: Seed of the halves and groups.
        at: Quantiles.
    """
    complete = np.flatnonzero(history.observed.all(axis=1))
    if len(complete) < 3 * rows:
        return None
    rng = np.random.default_rng([seed, rows])
    halves = np.array_split(rng.permutation(complete), FOLDS)
    ratios = []
    for i, half in enumerate(halves):
        others = history.rows(np.concatenate(halves[:i] + halves[i + 1 :]))
        fitted = estimator.settled().fit(others) if estimator.needs_history else estimator
        for group in range(groups):
            tried = history.rows(np.sort(rng.choice(half, rows, replace=False)))
            chooser = policy()
            chooser.prepare(others, fitted)
            found = replay_cells(tried, chooser, fitted, budgets, batch=batch, seed=group)
            truth = quantiles_of(tried.values.astype(np.float64) @ tried.weights, at)
            ratios.append([_ratio(fitted, observed, truth, level, at) for observed in found])
    return _upper(np.array(ratios), level)


def _ratio(
    estimator: Estimator,
    observed: NDArray[np.float64],
    truth: NDArray[np.float64],
    level: float,
    at: Sequence[float],
) -> NDArray[np.float64]:
    """(Q,) how far the truth lies from the estimate, in half-widths of the interval on that side."""
    found = score_distribution(estimator, observed, np.random.default_rng(0), DRAWS)
    low, high = found.intervals(at, level)
    middle = found.quantiles(at)
    half = np.where(truth >= middle, high - middle, middle - low)
    return np.asarray(np.abs(truth - middle) / np.maximum(half, LEAST_HALF_WIDTH))


def _upper(ratios: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """(budgets, Q) conformal quantile of the (groups, budgets, Q) ratios."""
    n = len(ratios)
    place = min(int(np.ceil((n + 1) * level)) - 1, n - 1)
    return np.asarray(np.minimum(np.sort(ratios, axis=0)[place], MOST))
