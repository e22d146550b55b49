"""No prediction: the mean of the acquired scores per dataset, then over datasets ("w/o prediction")."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.matrix import FloatArray, ScoreMatrix, dataset_weights
from estimators._base import Estimator, Prediction, ScoreEstimate, check_observed

__all__ = ["AggregateEstimator"]


class AggregateEstimator(Estimator):
    """Each unobserved score is taken to be the mean of its dataset's acquired scores.

    A dataset without acquired scores takes the mean over the other datasets' means (0.5 with nothing
    acquired). The standard deviation is that of stratified sampling with finite-population correction; the
    variance inside a dataset is smoothed by two pseudo-observations at 0 and 1, so that five equal answers do
    not claim certainty.
    """

    name: ClassVar[str] = "aggregate"
    needs_history: ClassVar[bool] = False
    interval_kind: ClassVar[str] = "sampling"

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        self.shares_: NDArray[np.float64] = dataset_weights(history)

    def _moments(
        self, observed: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Count, mean and smoothed variance of the acquired scores, each (B, D)."""
        onehot = np.eye(len(self.shares_))[self.dataset_index_]
        seen = ~np.isnan(observed)
        values = np.where(seen, observed, 0.0)
        count = seen @ onehot
        total, squares = values @ onehot, values**2 @ onehot
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total / count
        some = count > 0
        share = np.where(some, self.shares_, 0.0)
        weight = share.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            overall = (np.where(some, mean, 0.0) * share).sum(axis=1, keepdims=True) / weight
        mean = np.where(some, mean, np.where(weight > 0, overall, 0.5))
        smoothed = (total + 1.0) / (count + 2.0)
        variance = (squares + 1.0) / (count + 2.0) - smoothed**2
        return count, mean, variance

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`."""
        observed = check_observed(self, observed)
        _, mean, variance = self._moments(observed)
        seen = ~np.isnan(observed)
        return Prediction(
            np.where(seen, observed, mean[:, self.dataset_index_]),
            np.where(seen, 0.0, variance[:, self.dataset_index_]),
        )

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Dataset means drawn from their sampling distribution, then scores around them."""
        observed = check_observed(self, observed)
        count, mean, variance = self._moments(observed)
        shape = (observed.shape[0], n, len(self.shares_))
        level = mean[:, None] + rng.standard_normal(shape) * np.sqrt(variance / (count + 1.0))[:, None]
        probability = np.clip(level, 0.0, 1.0)[:, :, self.dataset_index_]
        draws = (rng.random(probability.shape) < probability).astype(np.float64)
        return np.where(np.isnan(observed)[:, None], draws, observed[:, None])

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; closed form."""
        observed = check_observed(self, observed)
        count, _, variance = self._moments(observed)
        size = np.bincount(self.dataset_index_, minlength=len(self.shares_))
        left = 1.0 - count / np.maximum(size, 1)
        spread = self.shares_**2 * variance * left / np.maximum(count, 1.0)
        score = np.clip(self.predict(observed).mean @ self.weights_, 0.0, 1.0)  # rounding may pass 1
        return ScoreEstimate(score, np.sqrt(spread.sum(axis=1)))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"shares": self.shares_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.shares_ = arrays["shares"]
