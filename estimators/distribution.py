"""The distribution of many rows' benchmark scores (of one model's templates, say), and its quantiles.

The distribution is that of the expected order statistics under the posterior: joint draws of all rows'
scores, each sorted, then averaged. Sorted posterior means would be too narrow, since each is shrunk towards
the others; sorted means of the observed scores too wide, since each carries sampling error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray
from estimators._base import Estimator, SupportsScoreDraws, check_observed

__all__ = [
    "QUANTILES",
    "ScoreDistribution",
    "draw_scores_of_rows",
    "quantiles_of",
    "score_distribution",
    "wasserstein",
]

Array = NDArray[np.float64]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
DRAWS = 400
BLOCK_BYTES = 2**28  # of joint samples held at once


@dataclass(frozen=True)
class ScoreDistribution:
    """What is believed of R rows' scores.

    Attributes:
        scores: (R,) expected score of each row.
        std: (R,) standard deviation of each row's score.
        order: (R,) expected order statistics, ascending: the estimated distribution.
        sorted_draws: (S, R) joint draws of the scores, each sorted.
    """

    scores: Array
    std: Array
    order: Array
    sorted_draws: Array

    def quantiles(self, at: Sequence[float]) -> Array:
        """(Q,) estimated quantiles."""
        return quantiles_of(self.order, at)

    def intervals(
        self, at: Sequence[float], level: float, factor: Array | float = 1.0
    ) -> tuple[Array, Array]:
        """Lower and upper ends (Q,) of the quantiles' intervals.

        Args:
            at: Quantiles asked for, in (0, 1].
            level: Level of the intervals, such as 0.9.
            factor: (Q,) or one: what both sides are stretched by (`QuantileFactors`; 1 = not at all).
        """
        middle = self.quantiles(at)
        drawn = np.stack([quantiles_of(draw, at) for draw in self.sorted_draws])
        low, high = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
        low, high = np.minimum(low, middle), np.maximum(high, middle)
        return (
            np.clip(middle - factor * (middle - low), 0.0, 1.0),
            np.clip(middle + factor * (high - middle), 0.0, 1.0),
        )


def score_distribution(
    estimator: Estimator, observed: FloatArray, rng: np.random.Generator, draws: int = DRAWS
) -> ScoreDistribution:
    """Distribution of the benchmark scores of the R rows of `observed` (R, N), NaN = not acquired."""
    observed = check_observed(estimator, observed)
    if not len(observed):
        raise BadInputError("a distribution needs at least one row", "name templates or methods")
    drawn = draw_scores_of_rows(estimator, observed, rng, draws)
    ordered = np.sort(drawn, axis=1)
    order = ordered.mean(axis=0)
    if estimator.interval_kind == "sampling":  # plain means carry their sampling error already
        order = np.sort(estimator.benchmark_score(observed).mean)
    return ScoreDistribution(drawn.mean(axis=0), drawn.std(axis=0), order, ordered)


def draw_scores_of_rows(estimator: Estimator, observed: Array, rng: np.random.Generator, draws: int) -> Array:
    """(S, R) joint draws of the rows' benchmark scores."""
    if isinstance(estimator, SupportsScoreDraws):
        return estimator.score_draws(observed, draws, rng)
    size = max(1, BLOCK_BYTES // (8 * draws * observed.shape[1]))
    if estimator.joint:
        size = len(observed)
    parts = [
        estimator.sample(observed[i : i + size], draws, rng) @ estimator.weights_
        for i in range(0, len(observed), size)
    ]
    return np.concatenate(parts).T


def quantiles_of(scores: FloatArray, at: Sequence[float]) -> Array:
    """(Q,) Q(p) = inf{x : F(x) >= p} of the empirical distribution of R scores, p in (0, 1]."""
    levels = np.asarray(at, dtype=np.float64)
    if ((levels <= 0) | (levels > 1)).any():
        raise BadInputError("quantiles lie above 0 and at most at 1", "such as 0.05,0.5,0.95")
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    place = np.ceil(levels * len(ordered) - 1e-9).astype(np.intp) - 1
    return np.asarray(ordered[np.maximum(place, 0)])


def wasserstein(first: FloatArray, second: FloatArray) -> float:
    """Wasserstein-1 distance of the empirical distributions of two sets of R scores."""
    return float(np.abs(np.sort(first) - np.sort(second)).mean())
