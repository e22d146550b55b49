"""X-pIRT: the scores of many rows from a few cells of each, by item response theory (PromptEval)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix
from estimators._base import Estimator, Prediction, ScoreEstimate, check_observed
from estimators._logistic_posterior import expectations
from estimators._two_way_logistic import Cells, TwoWayModel, fit_two_way

__all__ = ["XPirtDiscreteEstimator", "XPirtEmbeddingEstimator", "XPirtEstimator", "XPirtExamplesEstimator"]

Array = NDArray[np.float64]
MOST_COMPONENTS = 25  # of embeddings, as in the paper
DRAWS = 256
GRID = 161  # logits at which the mean probability over the columns is tabulated
BLOCK_ENTRIES = 4_000_000


class XPirtEstimator(Estimator):
    """PromptEval's extended performance-IRT estimator, with templates and examples one-hot (Rasch).

    A row's score is lambda * (mean of its observed scores) + (1 - lambda) * (mean probability of the others),
    lambda the observed share (Maia Polo et al. 2024, eq. 3.4). The probabilities are those of
    `_two_way_logistic`, fitted to the observed cells of all rows that are asked about together: what one row
    shows of an example helps the others. Nothing is learned from the history.

    Scores between 0 and 1 are made binary at the constant c with sum(Y) ~ sum(1[Y >= c]) for the fit
    (appendix B); the observed part keeps the raw scores.

    Args:
        seed: Seed of the draws behind `benchmark_score`'s standard deviation.
    """

    name: ClassVar[str] = "x-pirt"
    needs_history: ClassVar[bool] = False
    joint: ClassVar[bool] = True

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._rows: Array | None = None

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        vectors = history.embeddings if self.uses_embeddings else None
        n = history.n_prompts
        self.columns_: Array = np.zeros((n, 0)) if vectors is None else principal_components(vectors)

    def with_rows(self, features: FloatArray) -> Self:
        """The same estimator for rows with these covariates (R, p): template embeddings or discrete features.

        Only rows in this order and number may then be asked about.
        """
        known = copy.copy(self)
        known._rows = principal_components(features)
        return known

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; the rows of one call inform each other."""
        observed = check_observed(self, observed)
        model = self.fitted(observed)
        r = len(observed)
        follow = model.follow()
        doubt = np.diag(model.covariance)[:r, None] + model.easiness_variance(follow) + 2.0 * follow[:r]
        level, _ = expectations(model.theta[:, None] + model.easiness, np.maximum(doubt, 0.0))
        seen = ~np.isnan(observed)
        return Prediction(np.where(seen, observed, level), np.where(seen, 0.0, level * (1.0 - level)))

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> Array:
        """See `Estimator.sample`."""
        observed = check_observed(self, observed)
        model = self.fitted(observed)
        r = len(observed)
        draws = np.empty((r, n, observed.shape[1]))
        for s in range(n):
            moved = _shared_draw(model, rng)
            easiness = model.easiness - model.through_rows.T @ moved[:r]
            easiness = easiness + model.through_covariates @ moved[r:]
            easiness = easiness + np.sqrt(model.rest) * rng.standard_normal(len(model.rest))
            logit = (model.theta + moved[:r])[:, None] + easiness
            draws[:, s] = rng.random(logit.shape) < expectations(logit, np.zeros(1))[0]
        return np.where(np.isnan(observed)[:, None], draws, observed[:, None])

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`."""
        observed = check_observed(self, observed)
        mean = np.clip(self.predict(observed).mean @ self.weights_, 0.0, 1.0)
        return ScoreEstimate(
            mean, self.score_draws(observed, DRAWS, np.random.default_rng(self.seed)).std(axis=0)
        )

    def score_draws(self, observed: FloatArray, n: int, rng: np.random.Generator) -> Array:
        """(n, B) joint draws of the rows' benchmark scores; see `SupportsScoreDraws`.

        The columns enter through their mean probability at a logit, tabulated once, and through one common
        shift per draw: a draw costs the observed cells, not all of them.
        """
        observed = check_observed(self, observed)
        model = self.fitted(observed)
        return _ScoreDraws(model, observed, self.weights_).draw(n, rng)

    def fitted(self, observed: Array) -> TwoWayModel:
        """The model fitted to the observed cells of these rows (B, N)."""
        return fit_two_way(self._cells(observed), seed=self.seed)

    def _cells(self, observed: Array) -> Cells:
        x = self._rows
        if x is not None and len(x) != len(observed):
            raise BadInputError(f"{len(observed)} rows were asked about, covariates were given for {len(x)}")
        rows, columns = np.nonzero(~np.isnan(observed))
        return Cells(
            rows,
            columns,
            binarise(observed[rows, columns]),
            np.zeros((len(observed), 0)) if x is None else x,
            self.columns_,
        )

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"columns": self.columns_}

    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.columns_ = arrays["columns"]


class XPirtEmbeddingEstimator(XPirtEstimator):
    """`x-pirt` with template embeddings, reduced to 25 principal components, beside the one-hot effects."""

    name: ClassVar[str] = "x-pirt-embedding"
    row_features: ClassVar[str] = "embedding"


class XPirtDiscreteEstimator(XPirtEstimator):
    """`x-pirt` with counts of what a template's text is made of (appendix M) beside the one-hot effects."""

    name: ClassVar[str] = "x-pirt-discrete"
    row_features: ClassVar[str] = "discrete"


class XPirtExamplesEstimator(XPirtEstimator):
    """`x-pirt` with the prompts' embeddings as example covariates beside the one-hot effects."""

    name: ClassVar[str] = "x-pirt-examples"
    uses_embeddings: ClassVar[bool] = True


def binarise(values: Array) -> Array:
    """0/1 scores with (almost) the same sum: 1 at and above the constant c of appendix B."""
    ones = round(float(values.sum()))
    if ones == 0:
        return np.zeros_like(values)
    limit = np.sort(values)[-ones]
    return np.asarray(values >= limit, dtype=np.float64)


def principal_components(features: FloatArray) -> Array:
    """(R, k) the first 25 principal components, scaled together so that rows have about unit length."""
    centred = np.asarray(features, dtype=np.float64)
    centred = centred - centred.mean(axis=0) if len(centred) else centred
    if centred.shape[1] > MOST_COMPONENTS:
        left, strength, _ = np.linalg.svd(centred, full_matrices=False)
        centred = left[:, :MOST_COMPONENTS] * strength[:MOST_COMPONENTS]
    length = np.sqrt((centred**2).sum(axis=1).mean()) if len(centred) else 0.0
    return np.asarray(centred / length if length > 0 else np.zeros((len(centred), 0)))


class _ScoreDraws:
    """Joint draws of the rows' scores under a fitted model."""

    def __init__(self, model: TwoWayModel, observed: Array, weights: Array) -> None:
        self.model = model
        self.rows, self.columns = np.nonzero(~np.isnan(observed))
        self.cell_weights = weights[self.columns]
        r = len(observed)
        self.known = np.bincount(self.rows, self.cell_weights * observed[self.rows, self.columns], r)
        self.left = 1.0 - np.bincount(self.rows, self.cell_weights, r)
        reach = 6.0 * np.sqrt(np.diag(model.covariance)[:r].max(initial=1.0)) + 1.0
        self.grid = np.linspace(model.theta.min() - reach, model.theta.max() + reach, GRID)
        self.curve = self._over_columns(lambda level, slope: level @ weights)
        self.noise = self._over_columns(lambda level, slope: (level * (1.0 - level)) @ weights**2)
        _, slope = expectations(np.median(model.theta) + model.easiness, model.rest)
        share = weights * slope / max(float((weights * slope).sum()), 1e-12)
        self.shift = np.concatenate([-(model.through_rows @ share), model.through_covariates.T @ share])
        self.shift_rest = float(np.sqrt((share**2 * model.rest).sum()))

    def draw(self, n: int, rng: np.random.Generator) -> Array:
        return np.stack([self._one(rng) for _ in range(n)])

    def _one(self, rng: np.random.Generator) -> Array:
        model, r = self.model, len(self.model.theta)
        moved = _shared_draw(model, rng)
        shift = float(self.shift @ moved) + self.shift_rest * rng.standard_normal()
        logit = model.theta + moved[:r] + shift
        level, _ = expectations(logit[self.rows] + model.easiness[self.columns], model.rest[self.columns])
        taken = np.bincount(self.rows, self.cell_weights * level, r)
        variance = np.bincount(self.rows, self.cell_weights**2 * level * (1.0 - level), r)
        rest = np.clip(np.interp(logit, self.grid, self.curve) - taken, 0.0, np.maximum(self.left, 0.0))
        spread = np.sqrt(np.maximum(np.interp(logit, self.grid, self.noise) - variance, 0.0))
        score = self.known + rest + spread * rng.standard_normal(r)
        return np.clip(np.where(self.left > 1e-9, score, self.known), 0.0, 1.0)

    def _over_columns(self, summed: Callable[[Array, Array], Array]) -> Array:
        """(GRID,) a sum over the columns at each logit of the grid, in blocks."""
        size = max(1, BLOCK_ENTRIES // max(len(self.model.easiness), 1))
        parts = []
        for i in range(0, GRID, size):
            logit = self.grid[i : i + size, None] + self.model.easiness
            parts.append(summed(*expectations(logit, self.model.rest)))
        return np.concatenate(parts)


def _shared_draw(model: TwoWayModel, rng: np.random.Generator) -> Array:
    """(R + d,) deviation of theta and gamma from their means."""
    return np.asarray(model.root @ rng.standard_normal(len(model.covariance)))
