"""Linear-Gaussian prediction: factor analysis of the history, conditioned on what was acquired."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import BoolArray, FloatArray, ScoreMatrix
from estimators._base import Estimator, Linearization, Prediction, ScoreEstimate, check_observed
from estimators._draws import binary_prompts, draw_scores
from estimators._factor_analysis import FactorModel, fit_factors
from estimators._folds import hide_at_random, row_folds

__all__ = ["LinearGaussianEstimator"]

RANKS = (1, 2, 4, 8, 16, 32, 64)
SHARES = (0.05, 0.15)  # of the prompts seen, where ranks are compared


class LinearGaussianEstimator(Estimator):
    """Scores as a linear function of a Gaussian latent plus noise; all answers are in closed form.

    The best choice where the history has few methods. It treats a score's noise as independent of its level,
    so the prompts should not have been chosen by what was answered before (an adaptive policy wants a
    logistic estimator).

    Args:
        rank: Latent dimensions, or "auto": the one with the least error of the benchmark score on held-out
            history rows of which a random share of the prompts is seen.
        ridge: Prior precision of a loading.
        sweeps: Most EM sweeps.
        seed: Seed of the random masks that "auto" compares ranks on.
    """

    name: ClassVar[str] = "linear-gaussian"

    def __init__(
        self, *, rank: int | Literal["auto"] = "auto", ridge: float = 1.0, sweeps: int = 60, seed: int = 0
    ) -> None:
        super().__init__(seed=seed)
        self.rank = rank
        self.ridge = ridge
        self.sweeps = sweeps

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {"rank": self.rank, "ridge": self.ridge, "sweeps": self.sweeps, "seed": self.seed}

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        if self.rank != "auto" and self.rank < 1:
            raise BadInputError(f"the rank must be 1 or more, got {self.rank}")
        self.binary_: BoolArray = binary_prompts(history)
        values = _with_scores(history.values)
        rank = self.rank
        if rank == "auto":
            rank = self._choose_rank(values) if warm_start is None else warm_start.model_.rank
        self.model_: FactorModel = fit_factors(
            values,
            rank,
            ridge=self.ridge,
            sweeps=self.sweeps,
            start=None if warm_start is None else warm_start.model_,
        )

    def _choose_rank(self, values: NDArray[np.float64]) -> int:
        """The rank with the least mean absolute error of the benchmark score on held-out rows."""
        candidates = [rank for rank in RANKS if rank <= max(1, len(values) // 4)]
        if len(candidates) < 2:
            return 1
        errors = np.zeros(len(candidates))
        for train, test in row_folds(len(values), self.seed):
            masked = [hide_at_random(values[test], share, self.seed) for share in SHARES]
            for i, rank in enumerate(candidates):
                model = fit_factors(values[train], rank, ridge=self.ridge, sweeps=self.sweeps // 2)
                errors[i] += sum(self._error(model, values[test], seen) for seen in masked)
        return candidates[int(np.argmin(errors))]

    def _error(self, model: FactorModel, truth: NDArray[np.float64], seen: NDArray[np.float64]) -> float:
        """Sum over rows of the absolute error of the weighted mean over the prompts that have a truth."""
        weights = np.where(np.isnan(truth), 0.0, self.weights_)
        latent, _ = _posterior(model, seen)
        error = np.nan_to_num(truth) - (model.mean + latent @ model.loadings.T)
        error[~np.isnan(seen)] = 0.0
        return float(np.abs((error * weights).sum(axis=1)).sum())

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; means are clipped to [0, 1]."""
        observed = check_observed(self, observed)
        latent, covariance = _posterior(self.model_, observed)
        mean = np.clip(self.model_.mean + latent @ self.model_.loadings.T, 0.0, 1.0)
        variance = self.model_.noise + _quadratic(self.model_.loadings, covariance)
        seen = ~np.isnan(observed)
        return Prediction(np.where(seen, observed, mean), np.where(seen, 0.0, variance))

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Latents drawn from the posterior, scores in [0, 1] around the levels that they give."""
        observed = check_observed(self, observed)
        latent, covariance = _posterior(self.model_, observed)
        root = np.linalg.cholesky(covariance)
        noise = rng.standard_normal((len(observed), n, self.model_.rank))
        latents = latent[:, None] + noise @ root.transpose(0, 2, 1)
        level = self.model_.mean + latents @ self.model_.loadings.T
        draws = draw_scores(level, self.model_.noise, self.binary_, rng)
        return np.where(np.isnan(observed)[:, None], draws, observed[:, None])

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; closed form, clipped to [0, 1] as a whole.

        Prompt by prompt the mean is not clipped here, since errors past 0 and 1 cancel in the sum.
        """
        observed = check_observed(self, observed)
        latent, covariance = _posterior(self.model_, observed)
        unseen = np.isnan(observed)
        mean = np.where(unseen, self.model_.mean + latent @ self.model_.loadings.T, observed)
        weights = np.where(unseen, self.weights_, 0.0)
        slope = weights @ self.model_.loadings  # (B, r)
        variance = weights**2 @ self.model_.noise + np.einsum("br,brs,bs->b", slope, covariance, slope)
        return ScoreEstimate(np.clip(mean @ self.weights_, 0.0, 1.0), np.sqrt(variance))

    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`; exact for this estimator."""
        observed = check_observed(self, observed)
        latent, covariance = _posterior(self.model_, observed)
        mean = self.model_.mean + latent @ self.model_.loadings.T
        return Linearization(
            np.where(np.isnan(observed), mean, observed),
            self.model_.loadings,
            covariance,
            np.broadcast_to(self.model_.noise, mean.shape),
        )

    def prompt_features(self) -> NDArray[np.float64]:
        """(N, r + 1) loadings and mean score of each prompt."""
        return np.column_stack([self.model_.loadings, self.model_.mean])

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "mean": self.model_.mean,
            "loadings": self.model_.loadings,
            "noise": self.model_.noise,
            "binary": self.binary_,
        }

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.model_ = FactorModel(arrays["mean"], arrays["loadings"], arrays["noise"])
        self.binary_ = arrays["binary"]


def _with_scores(values: FloatArray) -> NDArray[np.float64]:
    """The rows that have any score, as float64."""
    kept: NDArray[np.float64] = values[~np.isnan(values).all(axis=1)].astype(np.float64)
    return kept


def _posterior(
    model: FactorModel, observed: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (B, r) and covariance (B, r, r) of the latent given each row's observed scores."""
    latent = np.zeros((len(observed), model.rank))
    precision: NDArray[np.float64] = np.empty((len(observed), model.rank, model.rank))
    root = model.loadings / np.sqrt(model.noise)[:, None]
    residual = (observed - model.mean) / np.sqrt(model.noise)
    for b, row in enumerate(residual):  # a gather per row beats masked products: few prompts are observed
        seen = np.flatnonzero(~np.isnan(row))
        block = root[seen]
        precision[b] = block.T @ block
        latent[b] = block.T @ row[seen]
    covariance = np.asarray(np.linalg.inv(np.eye(model.rank) + precision), dtype=np.float64)
    return (covariance @ latent[:, :, None])[:, :, 0], covariance


def _quadratic(loadings: NDArray[np.float64], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, N) loading_j' covariance_b loading_j."""
    product = loadings @ covariance  # (B, N, r)
    quadratic: NDArray[np.float64] = np.einsum("bnr,nr->bn", product, loadings)
    return quadratic
