"""p-IRT and gp-IRT of tinyBenchmarks (Polo et al., 2024), over any set of acquired prompts."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.matrix import FloatArray, ScoreMatrix
from estimators._base import ScoreEstimate, check_observed
from estimators._designs import simulate
from estimators._folds import known_scores, row_folds
from estimators._mirt import MirtEstimator

__all__ = ["GpIrtEstimator"]

COUNTS = (5, 10, 25, 50, 100, 200, 400)
FEWEST_ROWS = 10  # with fewer history rows, p-IRT alone


class GpIrtEstimator(MirtEstimator):
    """A convex combination of the anchor-weighted mean and p-IRT.

    p-IRT takes acquired scores as they are and the item response model's probabilities for the rest. The
    anchor-weighted mean lets each acquired prompt stand for the others that resemble it: those of its dataset
    whose item parameters (slopes, intercept) are nearest to its own. The share of the anchors, at each number
    of acquired prompts, is the one with the least squared error on history rows that the model was not fitted
    on; the paper sets it from expected variances instead. Single prompts are predicted by the model.

    Args: those of `MirtEstimator`.
    """

    name: ClassVar[str] = "gp-irt"

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        super()._fit(history, warm_start)
        n = history.n_prompts
        counts = [count for count in COUNTS if count <= n // 2] or [max(1, n // 2)]
        rows = history.rows(np.flatnonzero(history.observed.any(axis=1)))
        # numbers acquired, share of the anchors, factor of the standard deviation
        self.blend_: NDArray[np.float64] = np.array([counts, np.zeros(len(counts)), np.ones(len(counts))])
        if rows.n_methods >= FEWEST_ROWS:
            self.blend_[1:] = self._choose_blend(rows, counts)

    def _choose_blend(self, history: ScoreMatrix, counts: list[int]) -> NDArray[np.float64]:
        """(2, counts) least-squares share of the anchors, and held-out error over the deviation."""
        anchored, modelled, std = self._held_out(history, counts)
        gap = anchored - modelled
        share = -(gap * modelled).sum(axis=1) / np.maximum((gap**2).sum(axis=1), 1e-12)
        share = np.clip(share, 0.0, 1.0)
        error = modelled + share[:, None] * gap
        return np.stack([share, np.sqrt(np.mean((error / np.maximum(std, 1e-6)) ** 2, axis=1))])

    def _held_out(
        self, history: ScoreMatrix, counts: list[int]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Errors of the anchors' mean and of p-IRT, and p-IRT's deviation, each (counts, held-out rows)."""
        parts = []
        for train, test in row_folds(history.n_methods, self.seed):
            model = MirtEstimator(**self.settled_params()).fit(history.rows(train))
            truth = history.values[test].astype(np.float64)
            target = known_scores(truth, history.weights)
            fold = []
            for observed in simulate("random", model, truth, counts, np.random.default_rng(self.seed)):
                score = model.benchmark_score(observed)
                anchored = _anchored(observed, model.prompt_features(), self.dataset_index_, self.weights_)
                fold.append(np.stack([anchored - target, score.mean - target, score.std]))
            parts.append(np.stack(fold, axis=1))  # (3, counts, rows)
        anchored, modelled, std = np.concatenate(parts, axis=2)
        return anchored, modelled, std

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; p-IRT's deviation, scaled to held-out errors."""
        observed = check_observed(self, observed)
        modelled = super().benchmark_score(observed)
        anchored = _anchored(observed, self.prompt_features(), self.dataset_index_, self.weights_)
        seen = (~np.isnan(observed)).sum(axis=1)
        counts, shares, factors = self.blend_
        place = np.log(np.maximum(seen, 1))
        share = np.where(seen > 0, np.interp(place, np.log(counts), shares), 0.0)
        factor = np.interp(place, np.log(counts), factors)
        anchored = np.where(seen > 0, anchored, 0.0)
        return ScoreEstimate((1.0 - share) * modelled.mean + share * anchored, factor * modelled.std)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), "blend": self.blend_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        super()._restore(arrays)
        self.blend_ = arrays["blend"]


def _anchored(
    observed: NDArray[np.float64],
    features: NDArray[np.float64],
    datasets: NDArray[np.intp],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(B,) mean where each prompt takes the score of the nearest observed one, of its dataset if any is."""
    scores = np.zeros(len(observed))
    squares = (features**2).sum(axis=1)
    for b, row in enumerate(observed):
        seen = np.flatnonzero(~np.isnan(row))
        if len(seen):
            distance = squares[seen] - 2.0 * features @ features[seen].T  # up to the prompt's own square
            distance += 1e6 * (datasets[:, None] != datasets[seen])
            nearest = seen[distance.argmin(axis=1)]
            nearest[seen] = seen
            scores[b] = row[nearest] @ weights
    return scores
