"""Linear-Gaussian prediction: factor analysis of the history, conditioned on what was acquired."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import BoolArray, FloatArray, ScoreMatrix
from estimators._base import Estimator, Linearization, Prediction, ScoreEstimate, check_observed
from estimators._draws import binary_prompts, draw_scores
from estimators._factor_analysis import FactorModel, factor_posterior, fit_factors
from estimators._folds import hide_at_random, row_folds
from estimators._shrunk_covariance import shrunk_covariance

__all__ = ["LinearGaussianEstimator"]

RANKS = (2, 4, 8, 16, 32, 64)
FEW_ROWS = 200  # up to here, "full" is a candidate too
SHARES = (0.05, 0.15)  # of the prompts seen, where ranks are compared


Rank = int | Literal["full"]


class LinearGaussianEstimator(Estimator):
    """Scores as a linear function of a Gaussian latent plus noise; all answers are in closed form.

    The best choice where the history has few methods. It treats a score's noise as independent of its level,
    so the prompts should not have been chosen by what was answered before (an adaptive policy wants a
    logistic estimator).

    Args:
        rank: Latent dimensions of a factor analysis; or "full": the shrunk sample covariance, for few rows;
            or "auto": whichever has the least error of the benchmark score on held-out history rows of which
            a random share of the prompts is seen.
        sweeps: Most EM sweeps.
        seed: Seed of the random masks that "auto" compares ranks on.
    """

    name: ClassVar[str] = "linear-gaussian"

    def __init__(self, *, rank: Rank | Literal["auto"] = "auto", sweeps: int = 60, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.rank = rank
        self.sweeps = sweeps

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {"rank": self.rank, "sweeps": self.sweeps, "seed": self.seed}

    def settled_params(self) -> dict[str, Any]:
        """See `Estimator.settled_params`."""
        return {**self.params(), "rank": self.rank_}

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        if not isinstance(self.rank, str) and self.rank < 1:
            raise BadInputError(f"the rank must be 1 or more, 'full' or 'auto', got {self.rank}")
        self.binary_: BoolArray = binary_prompts(history)
        values = _with_scores(history.values)
        self.rank_: Rank = self._rank(values, warm_start)
        start = None if warm_start is None or warm_start.rank_ != self.rank_ else warm_start.model_
        self.model_: FactorModel = self._model(values, self.rank_, self.sweeps, start)

    def _rank(self, values: NDArray[np.float64], warm_start: Self | None) -> Rank:
        if self.rank != "auto":
            return self.rank
        few = len(values) <= FEW_ROWS
        return warm_start.rank_ if warm_start is not None and not few else self._choose_rank(values)

    def _model(
        self, values: NDArray[np.float64], rank: Rank, sweeps: int, start: FactorModel | None = None
    ) -> FactorModel:
        if rank == "full":
            return shrunk_covariance(values, self.dataset_index_)
        return fit_factors(values, rank, self.dataset_index_, sweeps=sweeps, start=start)

    def _choose_rank(self, values: NDArray[np.float64]) -> Rank:
        """The rank with the least mean absolute error of the benchmark score on held-out rows."""
        candidates: list[Rank] = [rank for rank in RANKS if rank <= len(values) // 4]
        if len(values) <= FEW_ROWS:
            candidates.insert(0, "full")
        if len(candidates) < 2:
            return candidates[0]
        errors = np.zeros(len(candidates))
        for train, test in row_folds(len(values), self.seed):
            masked = [hide_at_random(values[test], share, self.seed) for share in SHARES]
            for i, rank in enumerate(candidates):
                model = self._model(values[train], rank, self.sweeps // 4)
                errors[i] += sum(self._error(model, values[test], seen) for seen in masked)
        return candidates[int(np.argmin(errors))]

    def _error(self, model: FactorModel, truth: NDArray[np.float64], seen: NDArray[np.float64]) -> float:
        """Sum over rows of the absolute error of the weighted mean over the prompts that have a truth."""
        weights = np.where(np.isnan(truth), 0.0, self.weights_)
        latent, _ = factor_posterior(model, seen)
        error = np.nan_to_num(truth) - (model.mean + latent @ model.loadings.T)
        error[~np.isnan(seen)] = 0.0
        return float(np.abs((error * weights).sum(axis=1)).sum())

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; means are clipped to [0, 1]."""
        observed = check_observed(self, observed)
        latent, covariance = factor_posterior(self.model_, observed)
        mean = np.clip(self.model_.mean + latent @ self.model_.loadings.T, 0.0, 1.0)
        variance = self.model_.noise + _quadratic(self.model_.loadings, covariance)
        seen = ~np.isnan(observed)
        return Prediction(np.where(seen, observed, mean), np.where(seen, 0.0, variance))

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Latents drawn from the posterior, scores in [0, 1] around the levels that they give."""
        observed = check_observed(self, observed)
        latent, covariance = factor_posterior(self.model_, observed)
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
        latent, covariance = factor_posterior(self.model_, observed)
        unseen = np.isnan(observed)
        mean = np.where(unseen, self.model_.mean + latent @ self.model_.loadings.T, observed)
        weights = np.where(unseen, self.weights_, 0.0)
        slope = weights @ self.model_.loadings  # (B, r)
        variance = weights**2 @ self.model_.noise + np.einsum("br,brs,bs->b", slope, covariance, slope)
        return ScoreEstimate(np.clip(mean @ self.weights_, 0.0, 1.0), np.sqrt(variance))

    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`; exact for this estimator."""
        observed = check_observed(self, observed)
        latent, covariance = factor_posterior(self.model_, observed)
        mean = self.model_.mean + latent @ self.model_.loadings.T
        return Linearization(
            np.where(np.isnan(observed), mean, observed),
            np.asarray(self.model_.loadings, dtype=np.float64),
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
            "rank": np.array(0 if self.rank_ == "full" else self.rank_),
        }

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.model_ = FactorModel(arrays["mean"], arrays["loadings"], arrays["noise"])
        self.binary_ = arrays["binary"]
        self.rank_ = int(arrays["rank"].item()) or "full"


def _with_scores(values: FloatArray) -> NDArray[np.float64]:
    """The rows that have any score, as float64."""
    kept: NDArray[np.float64] = values[~np.isnan(values).all(axis=1)].astype(np.float64)
    return kept


def _quadratic(loadings: FloatArray, covariance: FloatArray) -> NDArray[np.float64]:
    """(B, N) loading_j' covariance_b loading_j."""
    return np.stack([((loadings @ own) * loadings).sum(axis=1) for own in covariance])
