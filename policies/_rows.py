"""What the best-arm policies share: weights and means per row, and the probability of being the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from policies._base import PolicyState, Recommendation

__all__ = ["RowMeans", "probability_best", "row_weights", "tied_best"]

NODES = 800  # quantiles, over all rows, that an integral is taken on
NEGLIGIBLE = 1e-6
TIE = 1e-12  # bounds closer than this are equal: sums in another order must not decide a tie


def row_weights(state: PolicyState) -> NDArray[np.float64]:
    """(R, N) weight of each cell in its row's score, summing to 1 per row.

    Cells that are neither known, pending nor available can never enter the score: the others share their
    weight.
    """
    counted = ~np.isnan(state.scores) | state.pending | state.available
    weights = np.where(counted, state.weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    shares: NDArray[np.float64] = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return shares


def tied_best(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Indices of the largest values; none where all are -inf."""
    largest = values.max()
    if largest == -np.inf:
        return np.empty(0, dtype=np.intp)
    return np.flatnonzero(values >= largest - TIE)


@dataclass(frozen=True)
class RowMeans:
    """Weighted means of the known scores of each row.

    Attributes:
        known: (R,) number of known scores.
        mean: (R,) their weighted mean; the mean over rows where a row has none (0.5 where no row has any).
        std: (R,) standard error of the mean, with finite-population correction; the variance inside a row
            is smoothed by two pseudo-scores at 0 and 1, so that five equal answers claim no certainty.
    """

    known: NDArray[np.intp]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def of(cls, state: PolicyState) -> RowMeans:
        seen = ~np.isnan(state.scores)
        weights = row_weights(state)
        values = np.where(seen, state.scores, 0.0)
        share = np.where(seen, weights, 0.0)
        known, total = seen.sum(axis=1), share.sum(axis=1)
        mean = np.divide(
            (share * values).sum(axis=1), total, out=np.full(len(total), np.nan), where=total > 0
        )
        overall = np.nanmean(mean) if (total > 0).any() else 0.5
        mean = np.where(total > 0, mean, overall)
        smoothed = (values.sum(axis=1) + 1.0) / (known + 2.0)
        variance = ((values**2).sum(axis=1) + 1.0) / (known + 2.0) - smoothed**2
        size = np.maximum((weights > 0).sum(axis=1), 1)
        left = np.clip(1.0 - known / size, 0.0, 1.0)
        return cls(known, mean, np.sqrt(variance * left / np.maximum(known, 1)))

    def recommendation(self) -> Recommendation:
        """The rows taken to be independent and normal around their means."""
        return Recommendation(self.mean, self.std, probability_best(self.mean, self.std))


def probability_best(mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability that each of R independent normal scores is the largest.

    P_i = integral of prod_{j != i} F_j dF_i, by the trapezoid rule on the quantiles of all rows together.
    Rows that beat the leader with a probability below 1e-6 are left out.

    Returns:
        (R,) probabilities summing to 1.
    """
    spread = np.maximum(std, 1e-9)
    leader = int(mean.argmax())
    z = (mean - mean[leader]) / np.sqrt(spread**2 + spread[leader] ** 2)
    near = np.flatnonzero(z > ndtri(NEGLIGIBLE))
    centre, width = mean[near, None], spread[near, None]
    nodes = int(np.clip(NODES // len(near), 9, 129))
    quantiles = ndtri((np.arange(nodes) + 0.5) / nodes)
    points = np.sort((centre + width * np.append(quantiles, (-8.0, 8.0))).reshape(-1))
    below = ndtr((points - centre) / width)  # (r, nodes in all)
    logs = np.log(np.maximum(below, 1e-300))
    others = np.exp(logs.sum(axis=0) - logs)
    chance = np.zeros(len(mean))
    chance[near] = (np.diff(below, axis=1) * (others[:, 1:] + others[:, :-1]) / 2.0).sum(axis=1)
    total: NDArray[np.float64] = chance / chance.sum()
    return total
