"""Ridge regression from the acquired scores to the benchmark score and to each prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.matrix import BoolArray, FloatArray, ScoreMatrix
from estimators._base import Estimator, Prediction, ScoreEstimate, check_observed
from estimators._draws import binary_prompts, draw_scores
from estimators._impute import imputed
from estimators._ridge_solver import RidgeSolver

__all__ = ["RidgeEstimator"]

COUNTS = (2, 5, 10, 25, 50, 100, 200, 400)  # of observed prompts, where penalties are chosen
PENALTIES = np.geomspace(0.03, 3000.0, 21)
DESIGNS = 4  # random subsets per count
PROMPT_SAMPLE = 16


class RidgeEstimator(Estimator):
    """One regression per set of observed prompts, on the complete history rows.

    Where methods are many and the observed prompts were chosen beforehand this is hard to beat. It knows
    nothing of why a prompt was chosen: after an adaptive policy its estimate is biased.

    The penalty depends on the number of observed prompts only; it has the least leave-one-out error
    over random subsets, once for the benchmark score and once for single prompts. Missing history
    scores are replaced by their expectation under a factor model.
    """

    name: ClassVar[str] = "ridge"

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        self.binary_: BoolArray = binary_prompts(history)
        values = history.values[history.observed.any(axis=1)].astype(np.float64)
        complete = imputed(values, self.dataset_index_).astype(np.float32)
        self._set_history(complete)
        self.penalties_: NDArray[np.float64] = self._choose_penalties()

    def _set_history(self, complete: NDArray[np.float32]) -> None:
        self.history_ = complete
        self.mean_: NDArray[np.float64] = complete.mean(axis=0, dtype=np.float64)
        self.solver_ = RidgeSolver(complete - self.mean_)

    def _choose_penalties(self) -> NDArray[np.float64]:
        """(counts, 3) rows of observed count, penalty for the benchmark score, penalty for a prompt."""
        rng = np.random.default_rng(self.seed)
        n = len(self.mean_)
        counts = [count for count in COUNTS if count < n] or [1]
        chosen = []
        for count in counts:
            error = np.zeros((2, len(PENALTIES)))
            for _ in range(DESIGNS):
                order = rng.permutation(n)
                error += self._cross_validation(order[:count], order[count:], rng)
            chosen.append([count, *PENALTIES[error.argmin(axis=1)]])
        return np.array(chosen)

    def _cross_validation(
        self, seen: NDArray[np.intp], unseen: NDArray[np.intp], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """(2, penalties) relative error for the unseen part of the score, and averaged over some prompts."""
        centred = self.solver_.centred
        sample = rng.permutation(unseen)[:PROMPT_SAMPLE]
        targets = np.column_stack([centred[:, unseen] @ self.weights_[unseen], centred[:, sample]])
        error = self.solver_.held_out_errors(seen, targets, PENALTIES)
        relative = error / ((targets**2).mean(axis=0) + 1e-12)
        return np.stack([relative[:, 0], relative[:, 1:].mean(axis=1)])

    def _penalty(self, count: int) -> tuple[float, float]:
        """Penalties for the score and for a prompt, interpolated in the logarithm of the count."""
        counts, *penalties = self.penalties_.T
        score, prompt = (np.interp(np.log(count), np.log(counts), np.log(column)) for column in penalties)
        return float(np.exp(score)), float(np.exp(prompt))

    def _designs(self, observed: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Each different set of observed columns, with the rows that have it."""
        seen = ~np.isnan(observed)
        patterns, which = np.unique(seen, axis=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            yield np.flatnonzero(which.reshape(-1) == i), np.flatnonzero(pattern)

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; Bernoulli variances, or those of the residuals where scores are real."""
        observed = check_observed(self, observed)
        mean = np.empty_like(observed)
        variance = np.empty_like(observed)
        for rows, seen in self._designs(observed):
            mean[rows], spread = self._predict_design(observed[rows], seen)
            variance[rows] = np.where(self.binary_, mean[rows] * (1.0 - mean[rows]), spread)
        known = ~np.isnan(observed)
        return Prediction(np.where(known, observed, mean), np.where(known, 0.0, variance))

    def _predict_design(
        self, observed: NDArray[np.float64], seen: NDArray[np.intp]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Expected scores (b, N) in [0, 1], and residual variances (N,) of the prompts with real scores."""
        centred = self.solver_.centred
        real = np.flatnonzero(~self.binary_)
        spread = np.zeros(len(self.mean_))
        if len(seen) == 0:
            spread[real] = (centred[:, real] ** 2).mean(axis=0)
            return np.broadcast_to(self.mean_, observed.shape), spread
        penalty = self._penalty(len(seen))[1]
        weights = self.solver_.weights(seen, observed[:, seen] - self.mean_[seen], penalty)
        if len(real):
            spread[real] = self.solver_.residual_variance(seen, centred[:, real], penalty)
        return np.clip(self.mean_ + weights.T @ centred, 0.0, 1.0), spread

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Scores around the predictions, all of a row shifted together by what the score may be off."""
        observed = check_observed(self, observed)
        prediction = self.predict(observed)
        unseen = np.isnan(observed) * self.weights_
        left = np.maximum(
            self.benchmark_score(observed).std ** 2 - (unseen**2 * prediction.variance).sum(1), 0
        )
        shift = np.sqrt(left) / np.maximum(unseen.sum(axis=1), 1e-9)
        level = prediction.mean[:, None] + shift[:, None, None] * rng.standard_normal((len(observed), n, 1))
        draws = draw_scores(level, prediction.variance[:, None], self.binary_, rng)
        return np.where(np.isnan(observed)[:, None], draws, observed[:, None])

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; a regression of its own, its deviation leaving one out."""
        observed = check_observed(self, observed)
        mean, std = np.empty(len(observed)), np.empty(len(observed))
        for rows, seen in self._designs(observed):
            mean[rows], std[rows] = self._score_design(observed[rows], seen)
        return ScoreEstimate(np.clip(mean, 0.0, 1.0), std)

    def _score_design(
        self, observed: NDArray[np.float64], seen: NDArray[np.intp]
    ) -> tuple[NDArray[Any], float]:
        weights = self.weights_.copy()
        weights[seen] = 0.0
        target = self.solver_.centred @ weights  # the part of the score that is not known
        known = observed[:, seen] @ self.weights_[seen] + self.mean_ @ weights
        if len(seen) == 0:
            return known, float(target.std())
        penalty = self._penalty(len(seen))[0]
        rows = self.solver_.weights(seen, observed[:, seen] - self.mean_[seen], penalty)
        variance = self.solver_.residual_variance(seen, target[:, None], penalty)[0]
        return known + rows.T @ target, float(np.sqrt(variance))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"history": self.history_, "penalties": self.penalties_, "binary": self.binary_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.binary_ = arrays["binary"]
        self.penalties_ = arrays["penalties"]
        self._set_history(arrays["history"])
