"""Multidimensional item response theory for rows that belong together, such as one model's templates."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.matrix import FloatArray
from estimators._base import Linearization, Prediction, ScoreEstimate, check_observed
from estimators._logistic_factors import LogisticModel
from estimators._logistic_posterior import expectations, latent_posterior
from estimators._mirt import MirtEstimator

__all__ = ["MirtGroupEstimator", "regroup"]

Array = NDArray[Any]
LEAST_ROWS = 4
ITERATIONS = 30
TOLERANCE = 1e-3
#: Rows' worth of the prior that rows differ as the history's methods do.
PRIOR_ROWS = 2.0


class MirtGroupEstimator(MirtEstimator):
    """`mirt` whose prior of the latent is learned from the rows that are asked about together.

    The prompts' parameters come from the history; how much the rows differ, and around what, from their own
    answers, by expectation maximisation. Templates of one model differ far less than models do: under the
    history's prior their distribution would come out much too wide.
    """

    name: ClassVar[str] = "mirt-group"
    joint: ClassVar[bool] = True
    bandwidths: ClassVar[tuple[float | None, ...]] = (None,)  # the rows' own prior takes its place

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; the rows of one call inform each other."""
        observed = check_observed(self, observed)
        return MirtEstimator.predict(self._among(observed), observed)

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """See `Estimator.sample`."""
        observed = check_observed(self, observed)
        return MirtEstimator.sample(self._among(observed), observed, n, rng)

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`."""
        observed = check_observed(self, observed)
        return MirtEstimator.benchmark_score(self._among(observed), observed)

    def score_draws(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """(n, B) joint draws of the rows' benchmark scores; see `SupportsScoreDraws`.

        Latents are drawn; given them, the unseen prompts together are normal, which they are enough of.
        """
        observed = check_observed(self, observed)
        model = self._among(observed).model_
        posterior = latent_posterior(model, observed)
        roots = np.linalg.cholesky(posterior.covariance)
        scores = np.empty((n, len(observed)))
        for i, row in enumerate(observed):
            unseen = np.where(np.isnan(row), self.weights_, 0.0)
            latent = posterior.mean[i] + rng.standard_normal((n, model.dimensions)) @ roots[i].T
            level, _ = expectations(latent @ model.slopes.T + model.intercepts, np.zeros(1))
            variance = (level * (1.0 - level)) @ (unseen**2 * model.dispersion)
            known = float(np.nan_to_num(row) @ self.weights_)
            scores[:, i] = known + level @ unseen + np.sqrt(variance) * rng.standard_normal(n)
        return np.clip(scores, 0.0, 1.0)

    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`."""
        observed = check_observed(self, observed)
        return MirtEstimator.linearize(self._among(observed), observed)

    def _among(self, observed: Array) -> Self:
        """The estimator under the prior that these rows bear out."""
        known = copy.copy(self)
        known.model_ = regroup(self.model_, observed)
        return known


def regroup(model: LogisticModel, observed: Array) -> LogisticModel:
    """The model in the coordinates in which these rows' latents are N(0, I).

    Args:
        model: Fitted to the history, whose latents are N(0, I).
        observed: (R, N) scores of the rows, NaN = not observed; with fewer than 4 rows nothing changes.
    """
    if len(observed) < LEAST_ROWS:
        return model
    d = model.dimensions
    centre, root = np.zeros(d), np.eye(d)
    for _ in range(ITERATIONS):
        posterior = latent_posterior(_moved(model, centre, root), observed)
        latent = centre + posterior.mean @ root.T
        doubt = np.einsum("ij,bjk,lk->il", root, posterior.covariance, root)
        fresh = latent.sum(axis=0) / (len(latent) + 1.0)  # one row's worth of the history's mean
        off = latent - fresh
        spread = (off.T @ off + doubt + PRIOR_ROWS * np.eye(d)) / (len(latent) + PRIOR_ROWS)
        step = max(np.abs(fresh - centre).max(), np.abs(np.linalg.cholesky(spread) - root).max())
        centre, root = fresh, np.linalg.cholesky(spread)
        if step < TOLERANCE:
            break
    return _moved(model, centre, root)


def _moved(model: LogisticModel, centre: Array, root: Array) -> LogisticModel:
    """The model for u with z = centre + root u."""
    return LogisticModel(model.slopes @ root, model.intercepts + model.slopes @ centre, model.dispersion)
