"""Rehearsing distribution studies on history rows, to learn by how much their intervals must be stretched.

Groups of history rows are studied as the rows of a study would be, by the policy that will choose the cells
and with an estimator that has not learned from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from estimators import Estimator
from estimators.distribution import QUANTILES, quantiles_of, score_distribution
from estimators.quantile_intervals import LEVELS, QuantileFactors, calibrate_quantiles, misses
from policies._base import Policy
from policies.replay import replay_cells

__all__ = ["learn_quantile_factors"]

GROUPS = 80
#: Rehearsals with one fit: a fit's errors, and the prompts it chooses, are common to all of them.
PER_FIT = 4
FOLDS = 5  # a fit leaves out one part of so many, or as many rows as groups are drawn from
MOST_HELD = 0.5
DRAWS = 200
#: A group is drawn from this many times its rows, or groups would be too much alike.
LEAST_SPARE = 1.5


def learn_quantile_factors(
    history: ScoreMatrix,
    estimator: Estimator,
    policy: Callable[[int], Policy],
    *,
    rows: Sequence[int],
    cells: Sequence[float],
    batch: int,
    levels: Sequence[float] = LEVELS,
    groups: int = GROUPS,
    seed: int = 0,
    at: Sequence[float] = QUANTILES,
) -> QuantileFactors | None:
    """Factors for the quantiles' intervals; None where the history is too small.

    Args:
        history: (M, N) scores; complete rows count, three times the fewest `rows` of them are needed.
        estimator: Fitted; refitted again and again without a part of the history, whose groups are studied.
        policy: Makes a fresh policy from a seed.
        rows: Numbers of rows of a study, ascending; those that the history is too small for are left out.
        cells: Cells per row, ascending.
        batch: Cells per decision.
        levels: Levels of the intervals.
        groups: Rehearsals.
        seed: Seed of the parts and groups.
        at: Quantiles, ascending.
    """
    complete = np.flatnonzero(history.observed.all(axis=1))
    sizes = [size for size in rows if MOST_HELD * len(complete) >= LEAST_SPARE * size]
    if not sizes:
        return None
    rng = np.random.default_rng(seed)
    held = max(len(complete) // FOLDS, round(LEAST_SPARE * sizes[-1]))
    found = []
    for fit in range(0, groups, PER_FIT):
        order = rng.permutation(complete)
        part, others = order[:held], history.rows(np.sort(order[held:]))
        fitted = estimator.settled().fit(others) if estimator.needs_history else estimator
        for number in range(fit, min(fit + PER_FIT, groups)):
            by_size = []
            for size in sizes:
                tried = history.rows(np.sort(rng.choice(part, size, replace=False)))
                chooser = policy(number)
                chooser.prepare(others, fitted)
                budgets = [max(1, round(each * size)) for each in cells]
                seen = replay_cells(tried, chooser, fitted, budgets, batch=batch, seed=number)
                by_size.append(list(_misses(fitted, tried, seen, levels, at)))
            found.append(by_size)
    ratios = np.moveaxis(np.array(found), 3, 1)  # (G, A, B, L, Q) -> (G, L, A, B, Q)
    return calibrate_quantiles(ratios, levels=levels, rows=sizes, cells=cells, at=at)


def _misses(
    estimator: Estimator,
    tried: ScoreMatrix,
    seen: Iterator[NDArray[np.float64]],
    levels: Sequence[float],
    at: Sequence[float],
) -> Iterator[NDArray[np.float64]]:
    """(L, Q) at each budget."""
    truth = quantiles_of(tried.benchmark_scores(), at)
    for observed in seen:
        found = score_distribution(estimator, observed, np.random.default_rng(0), DRAWS)
        yield np.stack([misses(found, truth, at, level) for level in levels])
