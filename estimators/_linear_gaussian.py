"""Linear-Gaussian prediction: factor analysis of the history, conditioned on what was acquired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import BoolArray, FloatArray, ScoreMatrix
from estimators._base import Estimator, Linearization, Prediction, ScoreEstimate, check_observed
from estimators._draws import binary_prompts, draw_scores
from estimators._factor_analysis import FactorModel, factor_posterior, fit_factors
from estimators._folds import hide_at_random, row_folds
from estimators._scoring import ranked_probability_score
from estimators._shrunk_covariance import SHRINKAGES, USUAL, Shrinkage, shrunk_covariance

__all__ = ["LinearGaussianEstimator"]

RANKS = (2, 4, 8, 16, 32, 64)
FEW_ROWS = 200  # up to here, "full" is a candidate too
SHARES = (0.05, 0.15)  # of the prompts seen, where ranks are compared
MOST_SEEN = (60, 180)  # but no more than studies buy
CANDIDATES_PER_ROW = 1.0
"""Candidates that a prompt is chosen among, to a history row, while rows are few. On 27 to 90 rows drawn from
Open LLM's training models the best of all prompts did worse than draws and promised far too much; half a
candidate to a row or one did best, alike, and as well as all on 33 rows of AlpacaEval's history. One was
taken after the test splits of AlpacaEval had missed a bound with half (.0159 at 50 prompts)."""
FEW_MASKS, MANY_MASKS = 8, 1  # draws of each share: with few rows one draw says little


Rank = int | Literal["full"]


@dataclass(frozen=True)
class _Choice:
    """A candidate: factors of a rank, or the sample covariance shrunk in some way."""

    rank: Rank
    shrinkage: Shrinkage = USUAL


class LinearGaussianEstimator(Estimator):
    """Scores as a linear function of a Gaussian latent plus noise; all answers are in closed form.

    The best choice where the history has few methods. It treats a score's noise as independent of its level,
    so the prompts should not have been chosen by what was answered before (an adaptive policy wants a
    logistic estimator).

    Args:
        rank: Latent dimensions of a factor analysis; or "full": the shrunk sample covariance, for few rows;
            or "auto": whichever has the least loss (ranked probability score of the benchmark score) on
            held-out history rows of which a random share of the prompts is seen.
        shrinkage: Of "full": its two shares (`Shrinkage`), or "auto": chosen in the same way.
        among: Of how many candidates a design should choose (`candidates_per_choice`; 0 = of all); or "auto":
            with few rows, as many as there are rows.
        sweeps: Most EM sweeps.
        seed: Seed of the random masks that "auto" compares ranks on.
    """

    name: ClassVar[str] = "linear-gaussian"

    def __init__(
        self,
        *,
        rank: Rank | Literal["auto"] = "auto",
        shrinkage: list[float] | Literal["auto"] = "auto",
        among: int | Literal["auto"] = "auto",
        sweeps: int = 60,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.rank = rank
        self.shrinkage = shrinkage
        self.among = among
        self.sweeps = sweeps

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {
            "rank": self.rank,
            "shrinkage": self.shrinkage,
            "among": self.among,
            "sweeps": self.sweeps,
            "seed": self.seed,
        }

    def settled_params(self) -> dict[str, Any]:
        """See `Estimator.settled_params`."""
        shrinkage = list(self.choice_.shrinkage)
        return {**self.params(), "rank": self.choice_.rank, "shrinkage": shrinkage}

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        self._check()
        self.binary_: BoolArray = binary_prompts(history)
        values = _with_scores(history.values)
        self.among_ = _candidates_by_rows(len(values)) if self.among == "auto" else self.among
        self.choice_ = self._choose(values, warm_start)
        start = None if warm_start is None or warm_start.choice_ != self.choice_ else warm_start.model_
        self.model_: FactorModel = self._model(values, self.choice_, self.sweeps, start)

    def _check(self) -> None:
        if not isinstance(self.rank, str) and self.rank < 1:
            raise BadInputError(f"the rank must be 1 or more, 'full' or 'auto', got {self.rank}")
        if self.shrinkage != "auto" and (len(self.shrinkage) != 2 or min(self.shrinkage) <= 0):
            raise BadInputError(f"the shrinkage is two positive shares or 'auto', got {self.shrinkage}")
        if self.among != "auto" and self.among < 0:
            raise BadInputError(f"the number of candidates is 0 or more or 'auto', got {self.among}")

    def candidates_per_choice(self) -> int:
        """See `Estimator.candidates_per_choice`."""
        return self.among_

    def _choose(self, values: NDArray[np.float64], warm_start: Self | None) -> _Choice:
        candidates = self._candidates(len(values))
        if len(candidates) == 1:
            return candidates[0]
        if warm_start is not None and len(values) > FEW_ROWS:
            return warm_start.choice_
        return candidates[int(np.argmin(self._losses(candidates, values)))]

    def _candidates(self, n_rows: int) -> list[_Choice]:
        shrunk = [
            _Choice("full", shrinkage)
            for shrinkage in (SHRINKAGES if self.shrinkage == "auto" else [Shrinkage(*self.shrinkage)])
        ]
        if self.rank == "full":
            return shrunk if n_rows > 1 else shrunk[:1]
        if self.rank != "auto":
            return [_Choice(self.rank)]
        factors = [_Choice(rank) for rank in RANKS if rank <= n_rows // 4]
        return [*shrunk, *factors] if 1 < n_rows <= FEW_ROWS else factors or shrunk[:1]

    def _model(
        self, values: NDArray[np.float64], choice: _Choice, sweeps: int, start: FactorModel | None = None
    ) -> FactorModel:
        if choice.rank == "full":
            return shrunk_covariance(values, self.dataset_index_, choice.shrinkage)
        return fit_factors(values, choice.rank, self.dataset_index_, sweeps=sweeps, start=start)

    def _losses(self, candidates: list[_Choice], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Loss of each candidate's benchmark score on held-out rows."""
        losses = np.zeros(len(candidates))
        masks = FEW_MASKS if len(values) <= FEW_ROWS else MANY_MASKS
        for train, test in row_folds(len(values), self.seed):
            masked = [
                hide_at_random(values[test], min(share, most / values.shape[1]), self.seed + i)
                for share, most in zip(SHARES, MOST_SEEN, strict=True)
                for i in range(masks)
            ]
            for i, choice in enumerate(candidates):
                model = self._model(values[train], choice, self.sweeps // 4)
                losses[i] += sum(self._loss(model, values[test], seen) for seen in masked)
        return losses

    def _loss(self, model: FactorModel, truth: NDArray[np.float64], seen: NDArray[np.float64]) -> float:
        """Sum over rows of the loss of the weighted mean over the prompts that have a truth."""
        hidden = ~np.isnan(truth) & np.isnan(seen)
        weights = np.where(hidden, self.weights_, 0.0)
        latent, covariance = factor_posterior(model, seen)
        slope = weights @ model.loadings
        surprise = (np.where(hidden, truth - model.mean, 0.0) * weights).sum(axis=1)
        error = surprise - (latent * slope).sum(axis=1)
        deviation = _deviation(model, covariance, weights, slope)
        return float(ranked_probability_score(error, deviation).sum())

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
        deviation = _deviation(self.model_, covariance, weights, weights @ self.model_.loadings)
        return ScoreEstimate(np.clip(mean @ self.weights_, 0.0, 1.0), deviation)

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
            "rank": np.array(0 if self.choice_.rank == "full" else self.choice_.rank),
            "shrinkage": np.array(self.choice_.shrinkage),
            "among": np.array(self.among_),
        }

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.model_ = FactorModel(arrays["mean"], arrays["loadings"], arrays["noise"])
        self.binary_ = arrays["binary"]
        self.among_ = int(arrays["among"].item())
        self.choice_ = _Choice(int(arrays["rank"].item()) or "full", Shrinkage(*arrays["shrinkage"].tolist()))


def _candidates_by_rows(n_rows: int) -> int:
    return max(1, round(CANDIDATES_PER_ROW * n_rows)) if n_rows <= FEW_ROWS else 0


def _with_scores(values: FloatArray) -> NDArray[np.float64]:
    """The rows that have any score, as float64."""
    kept: NDArray[np.float64] = values[~np.isnan(values).all(axis=1)].astype(np.float64)
    return kept


def _deviation(
    model: FactorModel,
    covariance: NDArray[np.float64],
    weights: FloatArray,
    slope: FloatArray,
) -> NDArray[np.float64]:
    """(B,) standard deviation of each row's sum of hidden scores times `weights` (B, N; 0 where seen).

    `slope` (B, r) is that sum's derivative by the latent, the weighted loadings.
    """
    shared = np.einsum("br,brs,bs->b", slope, covariance, slope)
    return np.asarray(np.sqrt(weights**2 @ model.noise + shared))


def _quadratic(loadings: FloatArray, covariance: FloatArray) -> NDArray[np.float64]:
    """(B, N) loading_j' covariance_b loading_j."""
    return np.stack([((loadings @ own) * loadings).sum(axis=1) for own in covariance])
