"""Low-rank factorization of the history, with an ensemble for what the history leaves open."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix, ScoreType
from estimators._base import Estimator, Linearization, Prediction, ScoreEstimate, check_observed
from estimators._low_rank_core import Factors, LowRankEnsemble, LowRankFit

__all__ = ["LowRankEstimator"]

LEAST_NOISE = 1e-4  # variance of a score that no factor explains, at least


class LowRankEstimator(Estimator):
    """Scores as U V': prompts' factors V learned on the history by alternating least squares.

    A new method's factors are a ridge regression of its acquired scores on V, shrunk towards the history's
    mean factors as far as the history's methods scatter around them; with nothing acquired they are that
    mean. The ensemble, its spread scaled to a standard error, says how uncertain V is; the regression's own
    posterior and the residual variance per prompt are added.

    Args:
        rank: Rank of the factorization.
        members: Ensemble size.
        ridge: Penalty in the alternating least squares.
        seed: Of the ensemble's dropped entries.
    """

    name: ClassVar[str] = "low-rank"

    def __init__(self, *, rank: int = 8, members: int = 16, ridge: float = 0.5, seed: int = 0) -> None:
        super().__init__(seed=seed)
        if members < 2:
            raise BadInputError(f"low-rank needs 2 members or more, got {members}")
        self.rank = rank
        self.members = members
        self.ridge = ridge

    def params(self) -> dict[str, Any]:
        """See `Estimator.params`."""
        return {"rank": self.rank, "members": self.members, "ridge": self.ridge, **super().params()}

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        start = None
        if warm_start is not None and warm_start.rank == self.rank:
            start = Factors(warm_start.rows_, warm_start.columns_)
        model = LowRankEnsemble(
            rank=min(self.rank, *history.values.shape),
            members=self.members,
            drop=0.2,  # scaled to a standard error by 2: dropping less would scale the noise up
            ridge=self.ridge,
            seed=self.seed,
        )
        fit = model.fit(history.values, start=start if model.rank == self.rank else None)
        self.rows_: NDArray[np.float64] = fit.full.rows
        self.columns_: NDArray[np.float64] = fit.full.columns
        self.member_columns_: NDArray[np.float64] = _aligned(fit)
        self.noise_: NDArray[np.float64] = _prompt_noise(history.values, fit.full)
        seen = history.observed.any(axis=1)
        self.prior_mean_: NDArray[np.float64] = fit.full.rows[seen].mean(axis=0)
        self.prior_precision_: NDArray[np.float64] = _precision(fit.full.rows[seen])
        kinds = np.array([kind is ScoreType.BINARY for kind in history.score_types])
        self.binary_: NDArray[np.bool_] = kinds[self.dataset_index_]

    def _latent(
        self, observed: NDArray[np.float64], columns: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Posterior mean (B, r) and covariance (B, r, r) of rows' factors, given prompt factors (N, r)."""
        certainty = ~np.isnan(observed) / self.noise_
        rank = columns.shape[1]
        outer = (columns[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)
        precision = (certainty @ outer).reshape(-1, rank, rank) + self.prior_precision_
        target = (certainty * np.nan_to_num(observed)) @ columns + self.prior_precision_ @ self.prior_mean_
        covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        return (covariance @ target[:, :, None])[:, :, 0], covariance

    def _level(self, observed: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(B, N) expected level of each score, cut to [0, 1], and its variance before the cut."""
        mean, covariance = self._latent(observed, self.columns_)
        own = np.einsum("nk,bkl,nl->bn", self.columns_, covariance, self.columns_)
        members = self.member_columns_.transpose(1, 0, 2)  # (C, N, r)
        spread = np.stack([self._latent(observed, member)[0] @ member.T for member in members]).var(axis=0)
        variance = own + spread
        return _cut_mean(mean @ self.columns_.T, np.sqrt(variance)), variance

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`."""
        observed = check_observed(self, observed)
        level, variance = self._level(observed)
        seen = ~np.isnan(observed)
        return Prediction(np.where(seen, observed, level), np.where(seen, 0.0, variance + self.noise_))

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """A member drawn for each sample, factors from its posterior, then scores around their level."""
        observed = check_observed(self, observed)
        samples = np.empty((len(observed), n, observed.shape[1]))
        member = rng.integers(self.members, size=n)
        for c in np.unique(member):
            mean, covariance = self._latent(observed, self.member_columns_[:, c])
            root = np.linalg.cholesky(covariance)
            index = np.flatnonzero(member == c)
            noise = rng.standard_normal((len(observed), len(index), mean.shape[1]))
            latent = mean[:, None] + noise @ root.transpose(0, 2, 1)
            samples[:, index] = self._scores(latent @ self.member_columns_[:, c].T, rng)
        return np.where(np.isnan(observed)[:, None], samples, observed[:, None])

    def _scores(self, level: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Scores (B, n, N) around levels: answers right or wrong where the dataset is binary."""
        level = np.clip(level, 0.0, 1.0)
        drawn = (rng.random(level.shape) < level).astype(np.float64)
        noisy = np.clip(level + rng.standard_normal(level.shape) * np.sqrt(self.noise_), 0.0, 1.0)
        return np.where(self.binary_, drawn, noisy)

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; closed form."""
        observed = check_observed(self, observed)
        left = np.where(np.isnan(observed), self.weights_, 0.0)
        slope = left @ self.columns_
        covariance = self._latent(observed, self.columns_)[1]
        own = np.einsum("bk,bkl,bl->b", slope, covariance, slope)
        members = self.member_columns_.transpose(1, 0, 2)
        scores = np.stack([((self._latent(observed, v)[0] @ v.T) * left).sum(axis=1) for v in members])
        level = (self._level(observed)[0] * left).sum(axis=1)
        known = np.nan_to_num(observed) @ self.weights_
        return ScoreEstimate(known + level, np.sqrt(own + scores.var(axis=0) + left**2 @ self.noise_))

    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`; the prompts' factors are taken as known."""
        observed = check_observed(self, observed)
        level, _ = self._level(observed)
        covariance = self._latent(observed, self.columns_)[1]
        noise = np.broadcast_to(self.noise_, observed.shape)
        return Linearization(
            np.where(np.isnan(observed), level, observed), self.columns_, covariance, noise.copy()
        )

    def prompt_features(self) -> NDArray[np.float64]:
        """(N, r) prompt factors."""
        return self.columns_

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "rows": self.rows_,
            "columns": self.columns_,
            "member_columns": self.member_columns_,
            "noise": self.noise_,
            "prior_mean": self.prior_mean_,
            "prior_precision": self.prior_precision_,
            "binary": self.binary_,
        }

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.rows_, self.columns_ = arrays["rows"], arrays["columns"]
        self.member_columns_, self.noise_ = arrays["member_columns"], arrays["noise"]
        self.prior_mean_, self.prior_precision_ = arrays["prior_mean"], arrays["prior_precision"]
        self.binary_ = arrays["binary"]


def _aligned(fit: LowRankFit) -> NDArray[np.float64]:
    """(N, C, r) members' prompt factors, comparable with the full fit's and with each other.

    Each is turned so that its row factors fit the full fit's best, U V' = (U A) (V A^-T)': only then does one
    prior over row factors serve all members. Their distances from the full fit are scaled to standard errors.
    """
    aligned = np.empty_like(fit.columns)
    for c in range(fit.columns.shape[1]):
        turn, *_ = np.linalg.lstsq(fit.rows[:, c], fit.full.rows, rcond=None)
        aligned[:, c] = fit.columns[:, c] @ np.linalg.pinv(turn).T
    centre = fit.full.columns[:, None]
    scaled: NDArray[np.float64] = centre + fit.scale * (aligned - centre)
    return scaled


def _cut_mean(mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of a normal variable that is cut to [0, 1]: E[max(x, 0)] - E[max(x - 1, 0)]."""
    std = np.maximum(std, 1e-12)

    def positive_part(x: NDArray[np.float64]) -> NDArray[np.float64]:
        z = x / std
        part: NDArray[np.float64] = x * ndtr(z) + std * np.exp(-(z**2) / 2.0) / np.sqrt(2.0 * np.pi)
        return part

    return np.clip(positive_part(mean) - positive_part(mean - 1.0), 0.0, 1.0)


def _prompt_noise(values: FloatArray, full: Factors) -> NDArray[np.float64]:
    """(N,) residual variance of each prompt, shrunk to the mean over prompts by five pseudo-scores."""
    residual = np.asarray(values, dtype=np.float64) - full.rows @ full.columns.T
    squares, count = np.nansum(residual**2, axis=0), (~np.isnan(residual)).sum(axis=0)
    overall = squares.sum() / max(1.0, count.sum())
    noise: NDArray[np.float64] = np.maximum((squares + 5.0 * overall) / (count + 5.0), LEAST_NOISE)
    return noise


def _precision(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """(r, r) inverse covariance of the history's row factors; few rows make the prior wide."""
    rank = rows.shape[1]
    centred = rows - rows.mean(axis=0)
    floor = 1e-3 * max(1e-6, float((rows**2).mean()))
    covariance = centred.T @ centred / max(1, len(rows) - 1) + (floor + 1.0 / len(rows)) * np.eye(rank)
    precision: NDArray[np.float64] = np.linalg.inv(covariance)
    return precision
