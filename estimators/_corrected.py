"""An estimator with a correction of its benchmark score, learned on held-out history rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix
from estimators._around import EstimatorAround
from estimators._base import (
    Estimator,
    ScoreEstimate,
    check_observed,
)
from estimators._designs import DESIGNS, simulate
from estimators._folds import known_scores, row_folds
from estimators._kernel_correction import KernelCorrection, fit_correction

__all__ = ["CorrectedEstimator"]

COUNTS = (10, 25, 50, 100, 200)
WIDTH = 256
FEWEST_ROWS = 20  # fewer history rows teach no correction
FOLDS = 5


@dataclass(frozen=True)
class _Learned:
    """What is learned around one base.

    Attributes:
        centre: (N,) mean of the imputed rows.
        axes: (N, w) their principal axes: distances along these are distances without most of the noise.
        frequency: (designs, N) how often each design picks each prompt, as shares.
        corrections: One per design, then count.
    """

    centre: NDArray[np.float64]
    axes: NDArray[np.float32]
    frequency: NDArray[np.float64]
    corrections: list[KernelCorrection]

    @property
    def loss(self) -> float:
        """Mean logarithm of the corrected held-out error: a tenth less counts the same at every count."""
        return float(np.mean([np.log(max(one.error, 1e-12)) for one in self.corrections or []] or [0.0]))


class CorrectedEstimator(EstimatorAround):
    """`corrected:<base>`: the base's benchmark score plus what it tends to be off for rows like this one.

    The base is fitted on four fifths of the history and acquires scores of the remaining rows as a study
    would, five times over; kernel ridge regression learns from each imputed row (acquired scores where there
    are any, predictions elsewhere) what the estimate was off. Without the cross-fitting the correction would
    learn the errors of a model that has seen the answers, which are too small and of the wrong kind.

    One correction is learned per way of acquiring and number of scores; in between they are interpolated. A
    row takes those of the way under which its set of prompts is likelier. Errors are learned per unseen
    weight and multiplied by it again, so that a complete row is never corrected. Predictions of single
    prompts are the base's. A base that chooses its own size is also tried smaller (`Estimator.alternatives`):
    the correction makes up for what the smaller one misses, and profits from its steadier predictions.

    Args:
        base: Name of the estimator to correct.
        base_params: Its hyper-parameters.
        designs: Ways of acquiring to learn from, of "random" and "variance-reduction"; None for both.
        seed: Seed of folds and simulated acquisition; the base keeps its own.
    """

    name: ClassVar[str] = "corrected"

    def __init__(
        self,
        *,
        base: str = "mirt",
        base_params: dict[str, Any] | None = None,
        designs: list[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.base = base
        self.base_params = base_params
        self.designs = designs

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {
            "base": self.base,
            "base_params": self.base_params,
            "designs": self.designs,
            "seed": self.seed,
        }

    def settled_params(self) -> dict[str, Any]:
        """See `Estimator.settled_params`."""
        return {**self.params(), "base_params": self.base_.settled_params()}

    def _make_base(self, params: dict[str, Any] | None) -> Estimator:
        from estimators import make_estimator

        return make_estimator(self.base, **(params or {}))

    def affordable_to_refit(self) -> bool:
        """No: each fit cross-fits its base already."""
        return False

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        self.designs_ = list(DESIGNS) if self.designs is None else self.designs
        if not self.designs_ or not set(self.designs_) <= set(DESIGNS):
            raise BadInputError(f"designs must be some of {', '.join(DESIGNS)}, got {self.designs_}")
        start = warm_start.base_ if warm_start is not None and warm_start.base == self.base else None
        self.base_: Estimator = self._make_base(self.base_params)
        self.base_.fit(history, warm_start=start)
        n = history.n_prompts
        self.counts_ = np.array([c for c in COUNTS if c <= n // 2] or [max(1, n // 2)])
        rows = history.rows(np.flatnonzero(history.observed.any(axis=1)))
        own = self.base_.settled_params()
        tried = self.base_.alternatives() if start is None and rows.n_methods >= FEWEST_ROWS else [own]
        self._learn(rows, tried)
        if self._settled_base != own:
            self.base_ = self._make_base(self._settled_base).fit(history)

    def _learn(self, history: ScoreMatrix, tried: list[dict[str, Any]]) -> None:
        """Learn the corrections around each of the bases that are tried, and keep those with least error."""
        least = np.inf
        for settled in tried:
            learned = self._learn_around(history, settled)
            if learned.loss < least or len(tried) == 1:
                least, self._settled_base = learned.loss, settled
                self._keep(learned)

    def _keep(self, learned: _Learned) -> None:
        self.centre_, self.axes_, self.frequency_ = learned.centre, learned.axes, learned.frequency
        self.corrections_ = learned.corrections

    def _learn_around(self, history: ScoreMatrix, settled: dict[str, Any]) -> _Learned:
        """Collect imputed rows and errors of held-out rows, then learn a correction per design and count."""
        n = history.n_prompts
        if history.n_methods < FEWEST_ROWS:
            frequency = np.full((len(self.designs_), n), 1.0 / n)
            return _Learned(np.zeros(n), np.zeros((n, 1), dtype=np.float32), frequency, [])
        cells, frequency = self._held_out(history, settled)
        pooled = np.concatenate([imputed for imputed, _, _ in cells])
        rng = np.random.default_rng(self.seed)
        centre, axes = _axes(pooled[np.sort(rng.permutation(len(pooled))[:2000])])
        corrections = [
            fit_correction(_features(imputed, centre, axes), error, std, rng) for imputed, error, std in cells
        ]
        return _Learned(centre, axes, frequency, corrections)

    def _held_out(
        self, history: ScoreMatrix, settled: dict[str, Any]
    ) -> tuple[list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]], NDArray[np.float64]]:
        """For each design, then count: imputed rows (M, N), errors and deviations (M,) per unseen weight.

        And how often each design picked each prompt (designs, N), as shares.
        """
        cells: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in self.designs_ for _ in self.counts_]
        picked = np.ones((len(self.designs_), history.n_prompts))
        for train, test in row_folds(history.n_methods, self.seed, folds=FOLDS, every=True):
            base = self._make_base(settled).fit(history.rows(train))
            truth = history.values[test].astype(np.float64)
            target = known_scores(truth, history.weights)
            for d, design in enumerate(self.designs_):
                rng = np.random.default_rng(self.seed)
                for c, seen in enumerate(simulate(design, base, truth, self.counts_.tolist(), rng)):
                    cells[d * len(self.counts_) + c].append(self._errors(base, seen, target))
                picked[d] += (~np.isnan(seen)).sum(axis=0)
        joined = [tuple(np.concatenate(column) for column in zip(*cell, strict=True)) for cell in cells]
        return joined, picked / picked.sum(axis=1, keepdims=True)  # type: ignore[return-value]

    def _errors(
        self, base: Estimator, seen: NDArray[np.float64], target: NDArray[np.float64]
    ) -> tuple[NDArray[Any], ...]:
        score = base.benchmark_score(seen)
        unseen = np.maximum(np.isnan(seen) @ self.weights_, 1e-6)
        return base.predict(seen).mean, (target - score.mean) / unseen, score.std / unseen

    @property
    def inner(self) -> Estimator:
        """The estimator that is corrected; samples are its own, uncorrected."""
        return self.base_

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; corrected, the deviation scaled to held-out errors."""
        observed = check_observed(self, observed)
        score = self.base_.benchmark_score(observed)
        if not self.corrections_:
            return score
        shift, scale = self._correction(observed)
        unseen = np.isnan(observed) @ self.weights_
        return ScoreEstimate(np.clip(score.mean + shift * unseen, 0.0, 1.0), score.std * scale)

    def _correction(self, observed: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Correction per unseen weight and factor of the deviation, each (B,)."""
        features = _features(self.predict(observed).mean, self.centre_, self.axes_)
        seen = ~np.isnan(observed)
        design = (seen @ np.log(self.frequency_).T).argmax(axis=1)
        shift, scale = np.zeros(len(observed)), np.ones(len(observed))
        place = np.log1p(seen.sum(axis=1))
        grid = np.log1p(np.concatenate([[0], self.counts_]))  # nothing to correct where nothing is seen
        for i, correction in enumerate(self.corrections_):
            d, c = divmod(i, len(self.counts_))
            hat = np.interp(place, grid, np.eye(len(grid))[c + 1]) * (design == d)
            rows = np.flatnonzero(hat)
            shift[rows] += hat[rows] * correction(features[rows])
            scale[rows] += hat[rows] * (correction.spread - 1.0)
        return shift, scale

    def _arrays(self) -> dict[str, NDArray[Any]]:
        learned = {
            "counts": self.counts_,
            "centre": self.centre_,
            "axes": self.axes_,
            "frequency": self.frequency_,
        }
        for i, correction in enumerate(self.corrections_):
            learned[f"features.{i}"] = correction.features
            learned[f"coefficients.{i}"] = correction.coefficients
            learned[f"scale.{i}"] = np.array([correction.bandwidth, correction.spread, correction.power])
        return {**learned, **{f"base.{key}": value for key, value in self.base_._arrays().items()}}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.counts_, self.centre_ = arrays["counts"], arrays["centre"]
        self.axes_, self.frequency_ = arrays["axes"], arrays["frequency"]
        self.corrections_ = []
        while f"scale.{len(self.corrections_)}" in arrays:
            i = len(self.corrections_)
            bandwidth, spread, power = arrays[f"scale.{i}"].tolist()
            known, coefficients = arrays[f"features.{i}"], arrays[f"coefficients.{i}"]
            self.corrections_.append(KernelCorrection(known, coefficients, bandwidth, spread, int(power)))
        self.base_ = self._make_base(self.base_params)
        restore_inside(self, self.base_, arrays, "base.")


def _axes(imputed: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Centre and leading principal axes of imputed rows."""
    centre = imputed.mean(axis=0)
    _, _, right = np.linalg.svd(imputed - centre, full_matrices=False)
    return centre, np.ascontiguousarray(right[:WIDTH].T.astype(np.float32))


def _features(
    imputed: NDArray[np.float64], centre: NDArray[np.float64], axes: NDArray[np.float32]
) -> NDArray[np.float32]:
    return (imputed - centre).astype(np.float32) @ axes


def restore_inside(outer: Estimator, inner: Estimator, arrays: dict[str, NDArray[Any]], prefix: str) -> None:
    """Restore an estimator held by another from those of the outer's arrays that carry the prefix."""
    inner.n_prompts_ = outer.n_prompts_
    inner.weights_, inner.dataset_index_ = outer.weights_, outer.dataset_index_
    inner._restore({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
