"""Factor analysis of a partly observed matrix by expectation maximisation.

y_mj = mean_j + loading_j . u_m + e_mj, u_m ~ N(0, I), e_mj ~ N(0, noise_j). Missing entries drop out of both
steps. The latent is re-standardised in each sweep (parameter-expanded EM, Liu, Rubin and Wu 1998), which
saves most of the sweeps that plain EM needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FactorModel", "fit_factors"]

Array = NDArray[np.float64]
LEAST_NOISE = 1e-4


@dataclass(frozen=True)
class FactorModel:
    """Parameters of N prompts.

    Attributes:
        mean: (N,) expected score.
        loadings: (N, r) derivative of the score by the latent.
        noise: (N,) variance that the latent does not explain.
    """

    mean: Array
    loadings: Array
    noise: Array

    @property
    def rank(self) -> int:
        """Number of latent dimensions."""
        return int(self.loadings.shape[1])


def fit_factors(
    values: Array,
    rank: int,
    *,
    ridge: float = 1.0,
    sweeps: int = 40,
    start: FactorModel | None = None,
    tolerance: float = 1e-4,
) -> FactorModel:
    """Fit by EM, from `start` (first columns the same prompts) or from a singular value decomposition.

    Args:
        values: (M, N) scores, NaN = missing; a column may be empty.
        rank: Number of latent dimensions.
        ridge: Prior precision of a loading, in units of pseudo-observations of the latent.
        sweeps: Most sweeps.
        start: Parameters to start from.
        tolerance: Stop when the mean noise changes by less than this share in a sweep.
    """
    mask = ~np.isnan(values)
    filled = np.where(mask, values, 0.0)
    prior = _column_prior(filled, mask)
    model = _decompose(filled, mask, rank, prior) if start is None else _extend(start, rank, prior)
    for _ in range(sweeps):
        before = model.noise.mean()
        model = _sweep(filled, mask, model, prior, ridge)
        if abs(model.noise.mean() / before - 1.0) < tolerance:
            break
    return model


def _column_prior(filled: Array, mask: NDArray[np.bool_]) -> FactorModel:
    """Column means and variances, shrunk by one pseudo-observation to those of all entries."""
    count = mask.sum(axis=0)
    total = max(int(count.sum()), 1)
    overall = filled.sum() / total
    spread = max(float((filled**2).sum() / total - overall**2), LEAST_NOISE)
    mean = (filled.sum(axis=0) + overall) / (count + 1.0)
    squares = (np.where(mask, filled - mean, 0.0) ** 2).sum(axis=0)
    return FactorModel(mean, np.zeros((len(mean), 0)), (squares + spread) / (count + 1.0))


def _decompose(filled: Array, mask: NDArray[np.bool_], rank: int, prior: FactorModel) -> FactorModel:
    """Start: leading singular vectors of the centred matrix, empty entries at their column's mean."""
    centred = np.where(mask, filled - prior.mean, 0.0)
    m, n = centred.shape
    gram = centred @ centred.T if m < n else centred.T @ centred
    values, vectors = np.linalg.eigh(gram)
    leading = np.maximum(values[::-1][:rank], 0.0)
    basis = vectors[:, ::-1][:, :rank]
    loadings = centred.T @ basis if m < n else basis * np.sqrt(leading)
    loadings = np.pad(loadings / np.sqrt(m), ((0, 0), (0, rank - loadings.shape[1])))
    noise = np.maximum(prior.noise - (loadings**2).sum(axis=1), 0.2 * prior.noise)
    return FactorModel(prior.mean, loadings, noise)


def _extend(start: FactorModel, rank: int, prior: FactorModel) -> FactorModel:
    """Start from an earlier fit; new columns enter with their own mean and no loadings."""
    n = len(prior.mean)
    old = min(len(start.mean), n)
    loadings = np.zeros((n, rank))
    shared = min(rank, start.rank)
    loadings[:old, :shared] = start.loadings[:old, :shared]
    mean, noise = prior.mean.copy(), prior.noise.copy()
    mean[:old], noise[:old] = start.mean[:old], start.noise[:old]
    return FactorModel(mean, loadings, noise)


def _sweep(
    filled: Array, mask: NDArray[np.bool_], model: FactorModel, prior: FactorModel, ridge: float
) -> FactorModel:
    residual = np.where(mask, filled - model.mean, 0.0)
    if mask.all():
        return _complete_sweep(filled, residual, model, prior, ridge)
    return _missing_sweep(filled, residual, mask, model, prior, ridge)


def _complete_sweep(
    filled: Array, residual: Array, model: FactorModel, prior: FactorModel, ridge: float
) -> FactorModel:
    """One sweep where every row is complete, so that all rows share one posterior covariance."""
    m = len(filled)
    scaled = model.loadings / model.noise[:, None]
    covariance = np.linalg.inv(np.eye(model.rank) + model.loadings.T @ scaled)
    latent = (residual @ scaled) @ covariance  # (M, r)
    second = latent.T @ latent + m * covariance  # (r, r)
    cross = residual.T @ latent  # (N, r)
    loadings = np.linalg.solve(second + ridge * np.eye(model.rank), cross.T).T
    unexplained = (
        (residual**2).sum(axis=0)
        - 2.0 * (loadings * cross).sum(axis=1)
        + ((loadings @ second) * loadings).sum(axis=1)
    )
    mean = (filled.sum(axis=0) - loadings @ latent.sum(axis=0) + prior.mean) / (m + 1.0)
    return _standardised(mean, loadings, (unexplained + prior.noise) / (m + 1.0), second / m)


def _missing_sweep(
    filled: Array,
    residual: Array,
    mask: NDArray[np.bool_],
    model: FactorModel,
    prior: FactorModel,
    ridge: float,
) -> FactorModel:
    """One sweep with a posterior covariance per row and a second moment per column."""
    m, rank = len(filled), model.rank
    scaled = model.loadings / model.noise[:, None]
    covariance = np.linalg.inv(np.eye(rank) + _weighted_outer(mask, scaled, model.loadings))  # (M, r, r)
    latent = np.einsum("mrs,ms->mr", covariance, residual @ scaled)
    moments = covariance + latent[:, :, None] * latent[:, None, :]  # (M, r, r)
    second = _tri_product(mask.T, moments)  # (N, r, r)
    cross = residual.T @ latent
    loadings = np.linalg.solve(second + ridge * np.eye(rank), cross[:, :, None])[:, :, 0]
    unexplained = (
        (residual**2).sum(axis=0)
        - 2.0 * (loadings * cross).sum(axis=1)
        + np.einsum("jr,jrs,js->j", loadings, second, loadings)
    )
    count = mask.sum(axis=0)
    explained = (loadings * (mask.T @ latent)).sum(axis=1)
    mean = (filled.sum(axis=0) - explained + prior.mean) / (count + 1.0)
    return _standardised(mean, loadings, (unexplained + prior.noise) / (count + 1.0), moments.sum(axis=0) / m)


def _standardised(mean: Array, loadings: Array, noise: Array, second: Array) -> FactorModel:
    """Move the latent's second moment into the loadings, so that it is the identity again."""
    rank = len(second)
    root = np.linalg.cholesky(second + 1e-9 * np.eye(rank))
    return FactorModel(mean, loadings @ root, np.maximum(noise, LEAST_NOISE))


def _weighted_outer(mask: NDArray[np.bool_], left: Array, right: Array) -> Array:
    """(M, r, r): sum over the observed columns of left_j right_j'."""
    return _tri_product(mask, left[:, :, None] * right[:, None, :])


def _tri_product(mask: NDArray[np.bool_], matrices: Array) -> Array:
    """(A, r, r): sum over b of mask[a, b] times the symmetric matrices[b]; only triangles are multiplied.

    Single precision: the sums only enter solves that carry a ridge of one or more.
    """
    rank = matrices.shape[1]
    rows, columns = np.triu_indices(rank)
    product = mask.astype(np.float32) @ matrices[:, rows, columns].astype(np.float32)
    full = np.empty((len(mask), rank, rank))
    full[:, rows, columns] = product
    full[:, columns, rows] = product
    return full
