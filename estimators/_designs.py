"""Simulated acquisition on complete rows: which scores a study would have seen after K of them.

Corrections and intervals are learned from such rows. They depend on how prompts are chosen, and estimators
may not import policies, so the two kinds of choice that matter are simulated here: at random, and by expected
variance reduction, which is what an adaptive policy does with an estimator that can be linearised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from estimators._base import Estimator, Linearization, SupportsLinearization

__all__ = ["DESIGNS", "Design", "random_design", "simulate", "variance_reduction_design"]

Array = NDArray[np.float64]
# (fitted estimator, (B, N) true scores with NaN where missing, increasing counts, generator)
# -> for each count the (B, N) scores that have been seen, NaN elsewhere
Design = Callable[[Estimator, Array, Sequence[int], np.random.Generator], Iterator[Array]]
MOST_AT_ONCE = 10  # cells chosen between two looks at the answers
BLOCK_CELLS = 2_000_000  # rows x prompts that are linearised at a time


def random_design(
    estimator: Estimator, truth: Array, counts: Sequence[int], rng: np.random.Generator
) -> Iterator[Array]:
    """Prompts drawn uniformly; each count extends the one before."""
    order = np.where(np.isnan(truth), 2.0, rng.random(truth.shape))
    rank = order.argsort(axis=1).argsort(axis=1)
    for count in counts:
        yield np.where(rank < count, truth, np.nan)


def variance_reduction_design(
    estimator: Estimator, truth: Array, counts: Sequence[int], rng: np.random.Generator
) -> Iterator[Array]:
    """Prompts chosen for the expected fall in the variance of the benchmark score, in growing batches.

    Inside a batch the covariance is updated as if the answers were known (they do not matter to it). An
    estimator that cannot be linearised gets a random design.
    """
    if not isinstance(estimator, SupportsLinearization):
        yield from random_design(estimator, truth, counts, rng)
        return
    observed = np.full_like(truth, np.nan)
    seen = 0
    for count in counts:
        while seen < count:
            step = min(max(1, seen // 8), MOST_AT_ONCE, count - seen)
            _acquire(estimator, observed, truth, step, rng)
            seen += step
        yield observed.copy()


DESIGNS: dict[str, Design] = {
    "random": random_design,
    "variance-reduction": variance_reduction_design,
}


def simulate(
    name: str, estimator: Estimator, truth: Array, counts: Sequence[int], rng: np.random.Generator
) -> Iterator[Array]:
    """Run the design of that name; see `Design`."""
    return DESIGNS[name](estimator, truth, counts, rng)


def _acquire(
    estimator: Estimator, observed: Array, truth: Array, step: int, rng: np.random.Generator
) -> None:
    """Fill in the next `step` scores of every row."""
    assert isinstance(estimator, SupportsLinearization)
    available = ~np.isnan(truth)
    line = estimator.linearize(observed[:1])
    drawn = estimator.candidates_per_choice() > 0
    if line.loadings.ndim == 2 and available.all() and not drawn:  # no answer matters: one choice for all
        columns = _choose(line, estimator.weights_, np.isnan(observed[:1]), step)
    else:
        columns = _choose_by_row(estimator, observed, available, step, rng)
    rows = np.arange(len(observed))[:, None]
    observed[rows, columns] = truth[rows, columns]


def _choose_by_row(
    estimator: Estimator,
    observed: Array,
    available: NDArray[np.bool_],
    step: int,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """(B, step) columns, each row by its own answers, in blocks of rows."""
    assert isinstance(estimator, SupportsLinearization)
    among = estimator.candidates_per_choice()
    size = max(1, BLOCK_CELLS // observed.shape[1])
    chosen = []
    for i in range(0, len(observed), size):
        block = observed[i : i + size]
        open_cells = np.isnan(block) & available[i : i + size]
        line = estimator.linearize(block)
        chosen.append(_choose(line, estimator.weights_, open_cells, step, among, rng))
    return np.concatenate(chosen)


def _choose(
    line: Linearization,
    weights: Array,
    candidates: NDArray[np.bool_],
    step: int,
    among: int = 0,
    rng: np.random.Generator | None = None,
) -> NDArray[np.intp]:
    """(B, step) columns, greedily by Cov(score, y_j)^2 / Var(y_j); a row without candidates repeats one.

    Where `among` is not 0, each is the best of so many that are drawn.
    """
    loadings = line.loadings if line.loadings.ndim == 3 else line.loadings[None]
    covariance, left = line.covariance.copy(), candidates.copy()
    variance = ((loadings @ covariance) * loadings).sum(axis=2) + line.noise  # (B, N)
    slope = ((weights * left)[:, None, :] @ loadings)[:, 0]  # (B, D)
    chosen = np.zeros((len(left), step), dtype=np.intp)
    rows = np.arange(len(left))
    for k in range(step):
        shared = _times(loadings, (covariance @ slope[:, :, None])[:, :, 0])
        tried = left if not among or rng is None else _drawn(left, among, rng)
        gain = np.where(tried, (shared + weights * line.noise) ** 2 / variance, -1.0)
        picked = chosen[:, k] = gain.argmax(axis=1)
        own = loadings[rows if len(loadings) > 1 else 0, picked]  # (B, D)
        direction = (covariance @ own[:, :, None])[:, :, 0]
        spread = variance[rows, picked]
        covariance -= direction[:, :, None] * direction[:, None, :] / spread[:, None, None]
        variance = np.maximum(variance - _times(loadings, direction) ** 2 / spread[:, None], 1e-12)
        slope -= weights[picked, None] * own
        left[rows, picked] = False
    return chosen


def _drawn(left: NDArray[np.bool_], among: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(B, N) True at `among` random candidates of each row; at all where a row has no more."""
    if among >= left.shape[1]:
        return left
    place = np.where(left, rng.random(left.shape), 2.0)
    return left & (place <= np.partition(place, among - 1, axis=1)[:, among - 1 : among])


def _times(loadings: Array, vectors: Array) -> Array:
    """(B, N) products of loadings (B or 1, N, D) with one vector (B, D) per row."""
    return np.asarray((loadings @ vectors[:, :, None])[:, :, 0])
