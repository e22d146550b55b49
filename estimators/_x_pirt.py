"""X-pIRT: the scores of many rows from a few cells of each, by item response theory (PromptEval)."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray, ScoreMatrix
from estimators._base import Estimator, Prediction, ScoreEstimate, check_observed
from estimators._logistic_posterior import expectations
from estimators._two_way_logistic import Cells, TwoWayModel, fit_two_way
from estimators._two_way_sampler import Effects, sample_effects

__all__ = [
    "XPirtDiscreteEstimator",
    "XPirtEmbeddingEstimator",
    "XPirtEstimator",
    "XPirtExamplesEstimator",
    "XPirtHistoryEstimator",
    "binarise",
    "principal_components",
]

Array = NDArray[np.float64]
MOST_COMPONENTS = 25  # of embeddings, as in the paper
DRAWS = 200
GRID = 64  # logits at which the mean probability over the columns is tabulated


class XPirtEstimator(Estimator):
    """PromptEval's extended performance-IRT estimator, with templates and examples one-hot (Rasch).

    A row's score is lambda * (mean of its observed scores) + (1 - lambda) * (mean probability of the others),
    lambda the observed share (Maia Polo et al. 2024, eq. 3.4). The probabilities are those of
    `_two_way_logistic`, fitted to the observed cells of all rows that are asked about together: what one row
    shows of an example helps the others. Draws of whole scores are those of `_two_way_sampler`, which does
    not take the variances for known. Nothing is learned from the history.

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
        drawn = self.score_draws(observed, DRAWS, np.random.default_rng(self.seed))
        return ScoreEstimate(mean, drawn.std(axis=0))

    def score_draws(self, observed: FloatArray, n: int, rng: np.random.Generator) -> Array:
        """(n, B) joint draws of the rows' benchmark scores; see `SupportsScoreDraws`.

        The variances are drawn too: with a few cells per row nobody knows how far the rows lie apart, which
        the ends of their distribution hang on.
        """
        observed = check_observed(self, observed)
        scores = _RowScores(observed, self.weights_)
        drawn = sample_effects(self._cells(observed), n, rng)
        return np.stack([scores.draw(effects, rng) for effects in drawn])

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


class XPirtHistoryEstimator(XPirtEstimator):
    """`x-pirt` told how hard the prompts and how good the templates were for other models.

    A prompt's covariate is its mean score in the history, as a logit; a row's is its template's effect on the
    models that were studied before (`template_effects`). How far to believe either is learned from the
    study's own cells, and each prompt and row keeps an effect of its own.
    """

    name: ClassVar[str] = "x-pirt-history"
    row_features: ClassVar[str] = "effects"
    needs_history: ClassVar[bool] = True

    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        count = history.observed.sum(axis=0)
        level = (np.nansum(history.values, axis=0, dtype=np.float64) + 0.5) / (count + 1.0)
        logit = np.log(level / (1.0 - level))
        self.columns_ = principal_components(np.where(count > 0, logit, logit[count > 0].mean())[:, None])


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


class _RowScores:
    """The rows' scores, given draws of the effects."""

    def __init__(self, observed: Array, weights: Array) -> None:
        self.rows, self.columns = np.nonzero(~np.isnan(observed))
        self.weights, self.seen = weights, weights[self.columns]
        r = len(observed)
        self.known = np.bincount(self.rows, self.seen * observed[self.rows, self.columns], r)
        self.left = 1.0 - np.bincount(self.rows, self.seen, r)

    def draw(self, drawn: Effects, rng: np.random.Generator) -> Array:
        """(R,) what is known, and normal draws of the unseen part."""
        r = len(self.known)
        all_, noise = self._over_columns(drawn)
        level, _ = expectations(drawn.theta[self.rows] + drawn.easiness[self.columns], np.zeros(1))
        rest = all_ - np.bincount(self.rows, self.seen * level, r)
        variance = noise - np.bincount(self.rows, self.seen**2 * level * (1.0 - level), r)
        rest = np.clip(rest, 0.0, np.maximum(self.left, 0.0))
        score = self.known + rest + np.sqrt(np.maximum(variance, 0.0)) * rng.standard_normal(r)
        return np.clip(np.where(self.left > 1e-9, score, self.known), 0.0, 1.0)

    def _over_columns(self, drawn: Effects) -> tuple[Array, Array]:
        """(R,) weighted sums over all columns of the chance p and, weights squared, of p (1 - p).

        Where rows are many they are read off a grid of logits: the columns are the same for all.
        """
        theta = drawn.theta
        at = theta if len(theta) <= GRID else np.linspace(theta.min(), theta.max() + 1e-9, GRID)
        level, _ = expectations(at[:, None] + drawn.easiness, np.zeros(1))
        sums = level @ self.weights, (level * (1.0 - level)) @ self.weights**2
        if len(theta) <= GRID:
            return sums
        return np.interp(theta, at, sums[0]), np.interp(theta, at, sums[1])


def _shared_draw(model: TwoWayModel, rng: np.random.Generator) -> Array:
    """(R + d,) deviation of theta and gamma from their means."""
    return np.asarray(model.root @ rng.standard_normal(len(model.covariance)))
