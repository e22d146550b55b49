"""Conformal intervals: the estimator's posterior, rescaled so that it covers on held-out history methods.

The score of a held-out row is |truth - estimate| / std. Its quantile with the finite-sample correction,
ceil((n + 1) level) / n (Vovk, Gammerman and Shafer 2005; scaled as in Lei et al. 2018), times the std of a
new row gives an interval that covers with probability `level` for methods exchangeable with the history's: on
average over such methods, not for every kind of method. Where held-out rows of one range of scores are
covered less often than `level`, that range gets its own, wider quantile, and the others share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix
from estimators._base import Estimator, ScoreEstimate
from estimators._designs import simulate
from estimators._folds import known_scores, row_folds

__all__ = ["ConformalIntervals", "HeldOut", "calibrate", "cross_fit", "rehearse"]

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
RANGES = (0.4, 0.6)  # edges of the ranges of estimated scores
LEAST_IN_RANGE = 20  # rows without which a range keeps the common factor
SHORTFALL = 0.01  # of coverage, before a range is widened


@dataclass(frozen=True)
class HeldOut:
    """Estimates of held-out rows, one entry per row and number of acquired prompts.

    Attributes:
        count: (n,) number of acquired prompts.
        truth: (n,) true benchmark score.
        estimate: (n,) estimated benchmark score.
        std: (n,) the estimator's standard deviation.
    """

    count: NDArray[np.intp]
    truth: NDArray[np.float64]
    estimate: NDArray[np.float64]
    std: NDArray[np.float64]


@dataclass(frozen=True)
class ConformalIntervals:
    """How many of the estimator's standard deviations an interval must reach to cover.

    Attributes:
        levels: (L,) coverage levels.
        counts: (C,) numbers of acquired prompts that were calibrated, increasing.
        edges: (R - 1,) edges between ranges of estimated scores.
        factors: (L, C, R) standard deviations to either side; infinite where there were too few rows.
        rows: Held-out rows behind each count's factors.
    """

    levels: NDArray[np.float64]
    counts: NDArray[np.float64]
    edges: NDArray[np.float64]
    factors: NDArray[np.float64]
    rows: int

    def interval(
        self, score: ScoreEstimate, acquired: FloatArray, level: float = 0.95
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends (B,), within [0, 1].

        Args:
            score: Estimates of B rows.
            acquired: (B,) number of acquired prompts of each row.
            level: One of the calibrated levels.

        Raises:
            BadInputError: The level was not calibrated.
        """
        reach = self.factor(score.mean, acquired, level) * np.maximum(score.std, 1e-12)
        reach = np.where(score.std > 0.0, reach, 0.0)  # nothing is left to predict
        return np.clip(score.mean - reach, 0.0, 1.0), np.clip(score.mean + reach, 0.0, 1.0)

    def factor(self, estimate: FloatArray, acquired: FloatArray, level: float) -> NDArray[np.float64]:
        """(B,) standard deviations to either side, interpolated in the logarithm of the number acquired."""
        known = np.flatnonzero(np.isclose(self.levels, level))
        if len(known) == 0:
            raise BadInputError(
                f"intervals of level {level:g} are not calibrated",
                f"calibrated levels: {', '.join(f'{value:g}' for value in self.levels)}",
            )
        table = self.factors[known[0]]  # (C, R)
        which = np.searchsorted(self.edges, estimate, side="right")
        place = np.log(np.maximum(np.asarray(acquired, dtype=np.float64), 1.0))
        grid = np.log(np.maximum(self.counts, 1.0))
        columns = np.stack([np.interp(place, grid, column) for column in table.T])  # (R, B)
        return np.asarray(columns[which, np.arange(len(which))])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able description; infinite factors become null."""
        factors = [
            [[f if math.isfinite(f) else None for f in row] for row in t] for t in self.factors.tolist()
        ]
        return {
            "levels": self.levels.tolist(),
            "counts": self.counts.tolist(),
            "edges": self.edges.tolist(),
            "factors": factors,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read back what `to_json` gave."""
        factors = [[[math.inf if f is None else f for f in row] for row in t] for t in content["factors"]]
        return cls(
            np.array(content["levels"], dtype=np.float64),
            np.array(content["counts"], dtype=np.float64),
            np.array(content["edges"], dtype=np.float64),
            np.array(factors, dtype=np.float64),
            int(content["rows"]),
        )


def calibrate(
    held_out: HeldOut, *, levels: Sequence[float] = LEVELS, edges: Sequence[float] = RANGES
) -> ConformalIntervals:
    """Learn the factors from held-out rows, one set per distinct number of acquired prompts.

    Raises:
        BadInputError: There is no held-out row, or lengths disagree.
    """
    lengths = {len(held_out.count), len(held_out.truth), len(held_out.estimate), len(held_out.std)}
    if len(lengths) != 1 or 0 in lengths:
        raise BadInputError(
            "calibration needs equally many counts, truths, estimates and deviations, at least 1"
        )
    ratio = np.abs(held_out.truth - held_out.estimate) / np.maximum(held_out.std, 1e-12)
    which = np.searchsorted(np.asarray(edges), held_out.estimate, side="right")
    counts = np.unique(held_out.count)
    factors = np.empty((len(levels), len(counts), len(edges) + 1))
    for c, count in enumerate(counts):
        here = held_out.count == count
        for i, level in enumerate(levels):
            factors[i, c] = _by_range(ratio[here], which[here], len(edges) + 1, level)
    return ConformalIntervals(
        np.asarray(levels, dtype=np.float64),
        counts.astype(np.float64),
        np.asarray(edges, dtype=np.float64),
        factors,
        int(np.bincount(np.searchsorted(counts, held_out.count)).min()),
    )


def _by_range(ratio: NDArray[Any], which: NDArray[Any], ranges: int, level: float) -> NDArray[np.float64]:
    """(R,) a range's own quantile where the common one falls short there; the others share one.

    What the short ranges are given is not given to the others too: coverage on average stays at `level`.
    """
    common = conformal_quantile(ratio, level)
    short = [
        r
        for r in range(ranges)
        if (which == r).sum() >= LEAST_IN_RANGE and (ratio[which == r] <= common).mean() < level - SHORTFALL
    ]
    others = ~np.isin(which, short)
    factors = np.full(ranges, conformal_quantile(ratio[others], level) if short and others.any() else common)
    for r in short:
        factors[r] = conformal_quantile(ratio[which == r], level)
    return factors


def conformal_quantile(ratio: NDArray[Any], level: float) -> float:
    """The ceil((n + 1) level)-th smallest of n values; infinite where n is too small for the level."""
    rank = math.ceil((len(ratio) + 1) * level - 1e-9)
    return float(np.sort(ratio)[rank - 1]) if rank <= len(ratio) else math.inf


def cross_fit(
    make: Callable[[], Estimator],
    history: ScoreMatrix,
    counts: Sequence[int],
    *,
    design: str = "random",
    folds: int = 5,
    seed: int = 0,
) -> HeldOut:
    """Estimate every history row from an estimator fitted without it, after each number of acquisitions.

    Args:
        make: Builds an unfitted estimator; give it settled hyper-parameters to save time.
        history: (M, N) scores; a row with missing scores counts with the mean of those present.
        counts: Numbers of acquired prompts.
        design: How prompts are acquired: "random" or "variance-reduction".
        folds: Number of folds.
        seed: Seed of folds and of random acquisition.
    """
    kept = history.rows(np.flatnonzero(history.observed.any(axis=1)))
    parts = [
        rehearse(make().fit(kept.rows(train)), kept.rows(test), counts, design=design, seed=seed)
        for train, test in row_folds(kept.n_methods, seed, folds=folds, every=True)
    ]
    return HeldOut(
        np.concatenate([part.count for part in parts]),
        np.concatenate([part.truth for part in parts]),
        np.concatenate([part.estimate for part in parts]),
        np.concatenate([part.std for part in parts]),
    )


def rehearse(
    estimator: Estimator, rows: ScoreMatrix, counts: Sequence[int], *, design: str = "random", seed: int = 0
) -> HeldOut:
    """Estimate rows that a fitted estimator has not learned from, after each number of acquisitions.

    Args:
        estimator: Fitted without these rows.
        rows: (B, N) scores; a row with missing scores counts with the mean of those present.
        counts: Numbers of acquired prompts.
        design: How prompts are acquired: "random" or "variance-reduction".
        seed: Seed of random acquisition.
    """
    truth = rows.values.astype(np.float64)
    wanted = sorted({min(count, rows.n_prompts) for count in counts})
    seen = simulate(design, estimator, truth, wanted, np.random.default_rng(seed))
    scores = [estimator.benchmark_score(observed) for observed in seen]
    return HeldOut(
        np.repeat(np.array(wanted, dtype=np.intp), rows.n_methods),
        np.tile(known_scores(truth, rows.weights), len(wanted)),
        np.concatenate([score.mean for score in scores]),
        np.concatenate([score.std for score in scores]),
    )
