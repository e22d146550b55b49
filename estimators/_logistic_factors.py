"""Multidimensional logistic item response theory, fitted by variational expectation maximisation.

P(y_mj = 1) = sigmoid(slope_j . z_m + intercept_j), z_m ~ N(0, I). The logistic likelihood is bounded from
below by a Gaussian (Jaakkola and Jordan, Bayesian parameter estimation via variational methods, 2000), so
that latents and prompt parameters both have closed-form Gaussian updates; a score between 0 and 1 enters the
bound as it is. Slopes and intercepts have Gaussian priors around their dataset's mean. Missing entries drop
out.

The scores are walked through in blocks of rows, in single precision: a sweep over M x N cells with D
dimensions costs about M N D^2 multiplications and keeps no more than one block of intermediate results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["LogisticModel", "fit_logistic"]

Single = NDArray[np.float32]
Array = NDArray[np.floating]
BLOCK_CELLS = 1_500_000
PSEUDO_PROMPTS = 5.0
SLOPE_PRECISION = 1.0
INTERCEPT_PRECISION = 0.05
LEAST_DISPERSION = 0.02


@dataclass(frozen=True)
class LogisticModel:
    """Parameters of N prompts.

    Attributes:
        slopes: (N, D) derivative of the logit by the latent (discriminations).
        intercepts: (N,) logit of a method at the latent's mean (easiness).
        dispersion: (N,) variance of a score around its expectation p, as a share of p (1 - p): 1 for binary
            scores, less for real ones.
    """

    slopes: Array
    intercepts: Array
    dispersion: Array

    @property
    def dimensions(self) -> int:
        """D, the number of latent dimensions."""
        return int(self.slopes.shape[1])


@dataclass
class _Fit:
    """A fit under way: data, latents of the rows and parameters of the columns.

    Attributes:
        values: (M, N) scores, NaN = missing.
        groups: (N,) dataset of each prompt.
        soft: (N,) True where scores are not binary, so that their dispersion is learned.
        model: Current parameters.
        mean: (M, D) posterior mean of the latents.
        covariance: (M, D, D) posterior covariance of the latents.
        error: (N,) sum of squared errors of the last sweep's expectations, and of p (1 - p).
    """

    values: Single
    groups: NDArray[np.intp]
    soft: NDArray[np.bool_]
    model: LogisticModel
    mean: Array
    covariance: Array
    error: Array = field(default_factory=lambda: np.zeros((0, 2)))


def fit_logistic(
    values: Array,
    dimensions: int,
    groups: NDArray[np.intp],
    soft: NDArray[np.bool_],
    *,
    sweeps: int = 50,
    tolerance: float = 2e-3,
    start: LogisticModel | None = None,
    seed: int = 0,
) -> tuple[LogisticModel, Array]:
    """Fit by variational EM; gives the parameters and the rows' latents (M, D).

    It starts from `start` (first columns the same prompts) or from a truncated SVD.

    Args:
        values: (M, N) scores in [0, 1], NaN = missing; a column may be empty.
        dimensions: D, the number of latent dimensions.
        groups: (N,) dataset of each prompt.
        soft: (N,) True where a prompt's scores are not binary.
        sweeps: Most sweeps.
        tolerance: Stop when slopes and intercepts change by less than this (root mean square) in a sweep.
        start: Parameters to start from; new columns start at their dataset's mean.
        seed: Seed of the randomised SVD.
    """
    scores = np.asarray(values, dtype=np.float32)
    if start is None:
        model, latents = _decompose(scores, dimensions, seed)
    else:
        model, latents = _extend(scores, start, groups)
    spread = np.broadcast_to(np.eye(dimensions), (len(scores), dimensions, dimensions))
    fit = _Fit(scores, groups, soft, model, latents, spread.copy())
    for _ in range(sweeps):
        before = fit.model
        _sweep(fit)
        if _change(before, fit.model) < tolerance:
            break
    return fit.model, fit.mean


def _change(before: LogisticModel, after: LogisticModel) -> float:
    """Root mean square change of slopes and intercepts, whatever rotation or reflection lies between."""
    left, _, right = np.linalg.svd(before.slopes.T @ after.slopes)
    moved = before.slopes @ (left @ right) - after.slopes
    return float(np.sqrt(np.mean(moved**2) + np.mean((before.intercepts - after.intercepts) ** 2)))


def _decompose(scores: Single, dimensions: int, seed: int) -> tuple[LogisticModel, Array]:
    """Start: logit of the column means, and a randomised truncated SVD of the centred scores.

    A logit's slope is about four times the score's. Halko, Martinsson and Tropp (2011), with three power
    iterations.
    """
    mask = ~np.isnan(scores)
    count = mask.sum(axis=0)
    level = (np.where(mask, scores, 0.0).sum(axis=0) + 1.0) / (count + 2.0)
    centred = np.where(mask, scores - level.astype(np.float32), np.float32(0.0))
    m, n = scores.shape
    width = min(dimensions + 8, m, n)
    basis = np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)
    for _ in range(4):
        basis = np.linalg.qr(centred.T @ np.linalg.qr(centred @ basis)[0])[0]
    left, strength, right = np.linalg.svd(centred @ basis, full_matrices=False)
    slopes, latents = np.zeros((n, dimensions)), np.zeros((m, dimensions))
    kept = min(dimensions, width)
    latents[:, :kept] = left[:, :kept] * np.sqrt(m)
    slopes[:, :kept] = 4.0 * (basis @ right.T[:, :kept]) * strength[:kept] / np.sqrt(m)
    return LogisticModel(slopes, np.log(level / (1.0 - level)), np.ones(n)), latents


def _extend(scores: Single, start: LogisticModel, groups: NDArray[np.intp]) -> tuple[LogisticModel, Array]:
    """Start from an earlier fit; new columns take their dataset's mean parameters."""
    n, old = scores.shape[1], min(len(start.intercepts), scores.shape[1])
    slopes, intercepts, dispersion = np.zeros((n, start.dimensions)), np.zeros(n), np.ones(n)
    slopes[:old], intercepts[:old] = start.slopes[:old], start.intercepts[:old]
    dispersion[:old] = start.dispersion[:old]
    known = np.column_stack([slopes, intercepts])[:old]
    fresh = _centres(known, groups[:old], groups)[old:]
    slopes[old:], intercepts[old:] = fresh[:, :-1], fresh[:, -1]
    return LogisticModel(slopes, intercepts, dispersion), np.zeros((len(scores), start.dimensions))


def _centres(parameters: Array, groups: NDArray[np.intp], wanted: NDArray[np.intp]) -> Array:
    """Mean parameters of the datasets `wanted`, shrunk by a few pseudo-prompts to the mean of all."""
    n_groups = int(max(groups.max(initial=0), wanted.max(initial=0))) + 1
    onehot = np.eye(n_groups)[groups]
    total = onehot.T @ parameters + PSEUDO_PROMPTS * parameters.mean(axis=0)
    return np.asarray((total / (onehot.sum(axis=0) + PSEUDO_PROMPTS)[:, None])[wanted])


def _sweep(fit: _Fit) -> None:
    """One sweep: the latents of all rows, the parameters of all columns, the scale of the latents."""
    n, d = fit.model.slopes.shape
    rows, columns = np.triu_indices(d + 1)
    second = np.zeros((n, len(rows)), dtype=np.float32)  # sum over rows of weight E[z~ z~'], z~ = (z, 1)
    first = np.zeros((n, d + 1), dtype=np.float32)  # sum over rows of (y - 1/2) E[z~]
    fit.error = np.zeros((n, 2))
    for block in _blocks(fit):
        weight, signal = _update_latents(fit, block)
        extended = np.column_stack([fit.mean[block], np.ones(len(fit.mean[block]))])
        moments = extended[:, :, None] * extended[:, None, :]
        moments[:, :d, :d] += fit.covariance[block]
        second += weight.T @ moments[:, rows, columns].astype(np.float32)
        first += signal.T @ extended.astype(np.float32)
    full = np.empty((n, d + 1, d + 1))
    full[:, rows, columns] = full[:, columns, rows] = second
    _update_columns(fit, full, first)
    _standardise(fit)


def _blocks(fit: _Fit) -> Iterator[slice]:
    m, n = fit.values.shape
    size = max(1, BLOCK_CELLS // n)
    return (slice(i, min(i + size, m)) for i in range(0, m, size))


def _update_latents(fit: _Fit, block: slice) -> tuple[Single, Single]:
    """Refresh the bound and the posterior of a block's rows; give the bound's weights and y - 1/2, (b, N)."""
    model, d = fit.model, fit.model.dimensions
    scores = fit.values[block]
    mask = ~np.isnan(scores)
    rows, columns = np.triu_indices(d)
    double = np.where(rows == columns, 1.0, 2.0)
    slopes = model.slopes.astype(np.float32)
    outer = (model.slopes[:, rows] * model.slopes[:, columns]).astype(np.float32)  # (N, D (D + 1) / 2)
    packed = (fit.covariance[block][:, rows, columns] * double).astype(np.float32)
    intercepts = model.intercepts.astype(np.float32)
    logit = fit.mean[block].astype(np.float32) @ slopes.T + intercepts
    weight = bound_weight(np.sqrt(logit**2 + packed @ outer.T)) * mask
    signal = np.where(mask, scores - np.float32(0.5), np.float32(0.0))
    if fit.soft.any():
        _collect_error(fit, scores, mask, logit)
    certainty = (1.0 / model.dispersion).astype(np.float32)
    precision = np.empty((len(scores), d, d))
    precision[:, rows, columns] = precision[:, columns, rows] = weight @ (outer * certainty[:, None])
    fit.covariance[block] = np.linalg.inv(np.eye(d) + precision)
    pull = (signal - weight * intercepts) @ (slopes * certainty[:, None])
    fit.mean[block] = (fit.covariance[block] @ pull[:, :, None].astype(np.float64))[:, :, 0]
    return weight, signal


def bound_weight(width: Array) -> Array:
    """Curvature tanh(width / 2) / (2 width) of the Jaakkola-Jordan bound; 1/4 at 0."""
    small = np.maximum(width, np.asarray(1e-3, dtype=width.dtype))
    return np.asarray(np.tanh(small * width.dtype.type(0.5)) / (small * width.dtype.type(2.0)))


def _collect_error(fit: _Fit, scores: Single, mask: NDArray[np.bool_], logit: Single) -> None:
    """Add the block's squared errors and p (1 - p) by column, for the dispersion."""
    level = 1.0 / (1.0 + np.exp(-logit))
    fit.error[:, 0] += np.where(mask, (scores - level) ** 2, 0.0).sum(axis=0)
    fit.error[:, 1] += np.where(mask, level * (1.0 - level), 0.0).sum(axis=0)


def _update_columns(fit: _Fit, second: Array, first: Array) -> None:
    """Maximum a posteriori slopes and intercepts under the bound; dispersion of the soft datasets."""
    d = fit.model.dimensions
    known = np.column_stack([fit.model.slopes, fit.model.intercepts])
    centre = _centres(known, fit.groups, fit.groups)
    prior = np.full(d + 1, SLOPE_PRECISION)
    prior[-1] = INTERCEPT_PRECISION
    certainty = 1.0 / fit.model.dispersion[:, None]
    precision = second * certainty[:, :, None] + np.diag(prior)
    solved = np.linalg.solve(precision, (first * certainty + centre * prior)[:, :, None])[:, :, 0]
    fit.model = LogisticModel(solved[:, :d], solved[:, d], _dispersion(fit))


def _dispersion(fit: _Fit) -> Array:
    """(N,) squared error over p (1 - p) by dataset, 1 where scores are binary."""
    if not fit.soft.any():
        return fit.model.dispersion
    squares = np.bincount(fit.groups, fit.error[:, 0])
    binomial = np.maximum(np.bincount(fit.groups, fit.error[:, 1]), 1e-9)
    share = np.clip(squares / binomial, LEAST_DISPERSION, 1.0)
    return np.where(fit.soft, share[fit.groups], 1.0)


def _standardise(fit: _Fit) -> None:
    """Give the latents mean 0 and covariance I over the rows, moving the change into the parameters."""
    centre = fit.mean.mean(axis=0)
    moved = fit.mean - centre
    spread = fit.covariance.mean(axis=0) + moved.T @ moved / len(moved)
    root = np.linalg.cholesky(spread + 1e-9 * np.eye(len(centre)))
    inverse = np.linalg.inv(root)
    model = fit.model
    fit.mean = moved @ inverse.T
    fit.covariance = inverse @ fit.covariance @ inverse.T
    fit.model = LogisticModel(model.slopes @ root, model.intercepts + model.slopes @ centre, model.dispersion)
