"""A logistic mixed model of rows x columns, fitted to a few observed cells: the Rasch model with priors.

P(y_ij = 1) = sigmoid(theta_i + easiness_j), theta ~ N(0, K), K = constant + linear in the rows' covariates +
one-hot; easiness_j = gamma . z_j + v_j (Maia Polo et al. 2024, eq. 3.2 and 3.3, with normal priors where the
paper drops a column). The variances of the priors are learned from the observed cells by expectation
maximisation, so that the model claims no more than the cells bear: with little data all rows are alike, with
much each has its own effect.

The posterior is the Gaussian nearest in Kullback-Leibler divergence, up to the probit approximation of
E[sigmoid]: the variances around a mere mode would be far too small with two or three cells per row. Columns
are eliminated (their precision is diagonal given the rows), so that a step costs a sparse product over the
observed cells and one factorisation of the size of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from estimators._logistic_posterior import expectations

__all__ = ["Cells", "TwoWayModel", "fit_two_way"]

Array = NDArray[Any]
LEVEL_VARIANCE = 4.0  # prior variance of the common logit
#: Inverse-gamma prior of each variance: so many effects' worth of this variance. Chosen on training rows of
#: Open LLM (TruthfulQA, GSM8K, mixed), where 100 models' full scores have variances from 3 to 14.
PRIOR_EFFECTS = 20.0
PRIOR_VARIANCE = 4.0
#: (effects, variance): rows that are different models, and rows that are one model's templates. The cells
#: decide which it is; the prior of the second is weak, so that rows may still turn out to differ.
ROW_PRIORS = ((PRIOR_EFFECTS, PRIOR_VARIANCE), (4.0, 0.1))
SURELY = 2.0  # standard errors of the held-out loss by which the second must be better
FOLDS = 4
MANY_CELLS = 5000  # from here on one held-out fold, and fewer iterations, decide well enough
FEW_ITERATIONS = 15
ITERATIONS = 60
TOLERANCE = 5e-3
LONGEST_STEP = 2.0  # logits that one iteration may move an effect by
LEAST_WEIGHT = 1e-6
MOST_PAIRS = 3e6


@dataclass(frozen=True)
class Cells:
    """Observed cells and what is known of their rows and columns.

    Attributes:
        rows: (C,) row of each cell.
        columns: (C,) column of each cell.
        values: (C,) 0 or 1.
        row_covariates: (R, p) standardised; p = 0 where there are none.
        column_covariates: (N, d) standardised; d = 0 where there are none.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    values: Array
    row_covariates: Array
    column_covariates: Array

    @property
    def shape(self) -> tuple[int, int]:
        """R and N."""
        return len(self.row_covariates), len(self.column_covariates)


@dataclass(frozen=True)
class TwoWayModel:
    """Gaussian posterior of the effects of R rows and N columns.

    Shared are theta (R,) and gamma (d,); a column's easiness moves with them and has a rest of its own:
    easiness_j = mean_j + through_j . (shared - mean) + rest_j.

    Attributes:
        theta: (R,) mean logit of each row.
        easiness: (N,) mean effect of each column.
        covariance: (R + d, R + d) of theta and gamma.
        through_rows: (R, N) sparse: minus how easiness moves with theta.
        through_covariates: (N, d) how easiness moves with gamma.
        rest: (N,) variance of rest_j.
        variances: Prior variances as learned: by "row-covariates", "rows", "column-covariates", "columns".
    """

    theta: Array
    easiness: Array
    covariance: Array
    through_rows: sparse.csr_matrix
    through_covariates: Array
    rest: Array
    variances: dict[str, float]

    @cached_property
    def root(self) -> Array:
        """(R + d, R + d) square root of the covariance."""
        value, vector = np.linalg.eigh(self.covariance)
        return np.asarray(vector * np.sqrt(np.maximum(value, 0.0)))

    def follow(self) -> Array:
        """(R + d, N) covariance of the shared effects with each column's easiness."""
        r = len(self.theta)
        moved = -(self.through_rows.T @ self.covariance[:r]).T
        return np.asarray(moved + self.covariance[:, r:] @ self.through_covariates.T)

    def row_slopes(self, covariates: Array) -> Array:
        """(p,) expected effects of the rows' covariates (R, p), as the model was fitted with them."""
        shared = self.variances["row-covariates"] * covariates
        prior = LEVEL_VARIANCE + shared @ covariates.T + self.variances["rows"] * np.eye(len(covariates))
        return np.asarray(shared.T @ np.linalg.solve(prior, self.theta))

    def easiness_variance(self, follow: Array) -> Array:
        """(N,) variance of each column's easiness; `follow` as from `follow()`."""
        r = len(self.theta)
        by_rows = np.asarray(self.through_rows.multiply(follow[:r]).sum(axis=0)).reshape(-1)
        by_covariates = (self.through_covariates * follow[r:].T).sum(axis=1)
        return np.asarray(self.rest - by_rows + by_covariates)


@dataclass
class _Fit:
    """A fit under way."""

    cells: Cells
    theta: Array
    gamma: Array
    own: Array  # (N,) v
    variances: dict[str, float]
    doubt: Array  # (C,) variance of each cell's logit
    seen: NDArray[np.intp]  # columns with a cell
    pairs: tuple[NDArray[np.intp], NDArray[np.intp]] | None
    precision: Array  # (R, R) inverse of the prior covariance K of theta, as of the last step
    row_prior: tuple[float, float]  # effects and variance of the prior of the rows' variance


def fit_two_way(cells: Cells, *, seed: int = 0) -> TwoWayModel:
    """Fit; how much rows may be expected to differ is chosen by cross-validation on the observed cells.

    Args:
        cells: What was observed.
        seed: Seed of the folds.
    """
    if not len(cells.values):
        return _fit_given(cells, ROW_PRIORS[0], 1)
    fold = np.random.default_rng(seed).permutation(len(cells.values)) % FOLDS
    many = len(cells.values) > MANY_CELLS
    different, alike = (
        np.concatenate([_held_out_losses(cells, fold == i, prior) for i in range(1 if many else FOLDS)])
        for prior in ROW_PRIORS
    )
    gain = different - alike
    surely = gain.mean() > SURELY * gain.std() / np.sqrt(len(gain))  # few cells say little
    return _fit_given(cells, ROW_PRIORS[int(surely)], ITERATIONS)


def _held_out_losses(cells: Cells, held: NDArray[np.bool_], row_prior: tuple[float, float]) -> Array:
    """Logarithmic loss of each held-out cell under a fit to the others."""
    rest = replace(cells, rows=cells.rows[~held], columns=cells.columns[~held], values=cells.values[~held])
    model = _fit_given(rest, row_prior, FEW_ITERATIONS)
    rows, columns, values = cells.rows[held], cells.columns[held], cells.values[held]
    doubt = np.diag(model.covariance)[rows] + model.rest[columns]
    level, _ = expectations(model.theta[rows] + model.easiness[columns], doubt)
    return np.asarray(-np.log(np.where(values > 0, level, 1.0 - level)))


def _fit_given(cells: Cells, row_prior: tuple[float, float], iterations: int) -> TwoWayModel:
    """Newton steps on the effects and expectation-maximisation steps on the variances, alternating."""
    r, n = cells.shape
    ones = float(cells.values.sum())
    level = np.log((ones + 1.0) / (len(cells.values) - ones + 1.0))
    names = ("row-covariates", "rows", "column-covariates", "columns")
    fit = _Fit(
        cells,
        np.full(r, level),
        np.zeros(cells.column_covariates.shape[1]),
        np.zeros(n),
        {**dict.fromkeys(names, 1.0), "rows": min(1.0, 3.0 * row_prior[1])},
        np.zeros(len(cells.values)),
        np.unique(cells.columns),
        _pairs(cells),
        np.zeros((0, 0)),
        row_prior,
    )
    for _ in range(iterations):
        model, step = _newton(fit)
        before = dict(fit.variances)
        _maximise(fit, model)
        moved = max(abs(np.log(fit.variances[name] / before[name])) for name in names)
        if max(step, moved) < TOLERANCE:
            break
    return _newton(fit)[0]


def _newton(fit: _Fit) -> tuple[TwoWayModel, float]:
    """One damped step of all effects; the posterior around where it ends, and the largest change."""
    cells, (r, n) = fit.cells, fit.cells.shape
    z, own_precision = cells.column_covariates, 1.0 / fit.variances["columns"]
    logit = fit.theta[cells.rows] + (z @ fit.gamma + fit.own)[cells.columns]
    level, weight = expectations(logit, fit.doubt)
    weight = np.maximum(weight, LEAST_WEIGHT)
    residual = cells.values - level
    matrix = sparse.csr_matrix((weight, (cells.rows, cells.columns)), shape=(r, n))
    total = np.bincount(cells.columns, weight, n)
    precision = total + own_precision
    through_rows = matrix.multiply(1.0 / precision).tocsr()
    through_covariates = (own_precision / precision)[:, None] * z
    fit.precision = prior = np.linalg.inv(_row_prior(fit))
    covariance = _shared_covariance(fit, matrix, through_rows, through_covariates, total, prior)
    by_column = np.bincount(cells.columns, residual, n)
    pull = by_column - own_precision * fit.own
    by_row = np.bincount(cells.rows, residual, r) - prior @ fit.theta - through_rows @ pull
    by_covariate = (
        z.T @ (by_column - total / precision * pull) - fit.gamma / fit.variances["column-covariates"]
    )
    shared = covariance @ np.concatenate([by_row, by_covariate])
    own = (pull - matrix.T @ shared[:r] - total * (z @ shared[r:])) / precision
    largest = float(max(np.abs(shared).max(), np.abs(own).max()))
    damping = min(1.0, LONGEST_STEP / max(largest, 1e-12))
    fit.theta, fit.gamma = fit.theta + damping * shared[:r], fit.gamma + damping * shared[r:]
    fit.own = fit.own + damping * own
    model = TwoWayModel(
        fit.theta,
        z @ fit.gamma + fit.own,
        covariance,
        through_rows,
        through_covariates,
        1.0 / precision,
        dict(fit.variances),
    )
    return model, largest


def _row_prior(fit: _Fit) -> Array:
    """(R, R) prior covariance K of theta."""
    x = fit.cells.row_covariates
    prior = LEVEL_VARIANCE + fit.variances["row-covariates"] * (x @ x.T)
    return np.asarray(prior + fit.variances["rows"] * np.eye(len(x)))


def _shared_covariance(
    fit: _Fit,
    matrix: sparse.csr_matrix,
    through_rows: sparse.csr_matrix,
    through_covariates: Array,
    total: Array,
    prior: Array,
) -> Array:
    """(R + d, R + d) covariance of theta and gamma, the columns' own effects integrated out."""
    z = fit.cells.column_covariates
    rows = prior + np.diag(np.asarray(matrix.sum(axis=1)).reshape(-1))
    rows = rows - (through_rows @ matrix.T).toarray()
    if z.shape[1] == 0:
        return np.asarray(np.linalg.inv(rows))
    cross = matrix @ through_covariates
    inner = z.T @ (total[:, None] * through_covariates)
    inner = inner + np.eye(z.shape[1]) / fit.variances["column-covariates"]
    return np.asarray(np.linalg.inv(np.block([[rows, cross], [cross.T, inner]])))


def _maximise(fit: _Fit, model: TwoWayModel) -> None:
    """Refresh the cells' doubts and the prior variances from the posterior."""
    cells, r, z = fit.cells, len(fit.theta), fit.cells.column_covariates
    crossed, variance = _moments(fit, model)
    fit.doubt = model.covariance[cells.rows, cells.rows] + variance[cells.columns] + 2.0 * crossed
    d = z.shape[1]
    if d:
        spread = float(np.trace(model.covariance[r:, r:]))
        fit.variances["column-covariates"] = _posterior_variance(float(fit.gamma @ fit.gamma) + spread, d)
        alone = replace(model, through_covariates=model.through_covariates - z)
        _, variance = _moments(fit, alone)
    squares = float((fit.own[fit.seen] ** 2 + variance[fit.seen]).sum())
    fit.variances["columns"] = _posterior_variance(squares, len(fit.seen))
    inverse = fit.precision
    second = inverse @ (np.outer(fit.theta, fit.theta) + model.covariance[:r, :r]) @ inverse - inverse
    fit.variances["rows"] = _row_variance(fit.variances["rows"], float(np.trace(second)), r, fit.row_prior)
    x = cells.row_covariates
    if x.shape[1]:
        fall = float(((second @ x) * x).sum())
        old = fit.variances["row-covariates"]
        fit.variances["row-covariates"] = _row_variance(old, fall, x.shape[1], fit.row_prior)


def _row_variance(old: float, fall: float, size: int, prior: tuple[float, float]) -> float:
    """New variance of a part of K: E|effects|^2 = old^2 tr(F' (K^-1 E[theta theta'] K^-1 - K^-1) F) +
    old size.
    """
    return _posterior_variance(old**2 * fall + old * size, size, *prior)


def _moments(fit: _Fit, model: TwoWayModel) -> tuple[Array, Array]:
    """(C,) covariance of each cell's row with its column's easiness, and (N,) the easiness's variance."""
    cells, r = fit.cells, len(fit.theta)
    if fit.pairs is None:
        follow = model.follow()
        return follow[cells.rows, cells.columns], model.easiness_variance(follow)
    first, second = fit.pairs  # of cells in the same column: only those can meet
    gains = np.asarray(model.through_rows[cells.rows, cells.columns]).reshape(-1)
    meets = gains[second] * model.covariance[cells.rows[first], cells.rows[second]]
    crossed = -np.bincount(first, meets, len(gains))
    covariates = (model.covariance[cells.rows, r:] * model.through_covariates[cells.columns]).sum(axis=1)
    crossed = crossed + covariates
    variance = model.rest - np.bincount(cells.columns, gains * crossed, len(model.rest))
    moved = (
        model.through_covariates @ model.covariance[r:, r:] - model.through_rows.T @ model.covariance[:r, r:]
    )
    return crossed, variance + (model.through_covariates * moved).sum(axis=1)


def _pairs(cells: Cells) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """All ordered pairs of cells that share a column; None where they are too many to list."""
    count = np.bincount(cells.columns, minlength=cells.shape[1]).astype(np.float64)
    if (count**2).sum() > MOST_PAIRS:
        return None
    c = len(cells.columns)
    members = sparse.csr_matrix((np.ones(c), (np.arange(c), cells.columns)), shape=(c, cells.shape[1]))
    shared = (members @ members.T).tocoo()
    return shared.row.astype(np.intp), shared.col.astype(np.intp)


def _posterior_variance(
    squares: float, size: int, effects: float = PRIOR_EFFECTS, variance: float = PRIOR_VARIANCE
) -> float:
    return (squares + effects * variance) / (size + effects)
