"""A quick logistic factor model of a score matrix: where the neural process gets its prompt features.

P(y_mj = 1) = sigmoid(a_j . z_m + d_j), z_m ~ N(0, I), fitted by variational EM with the logistic bound of
Jaakkola and Jordan (2000), whose updates are closed-form Gaussians. Scores between 0 and 1 enter as they are
(quasi-likelihood). Missing entries drop out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Factors", "fit_factors", "row_posterior"]

Array = NDArray[np.float64]

LOADING_PRECISION = 1.0
INTERCEPT_PRECISION = 0.05


@dataclass(frozen=True)
class Factors:
    """Item parameters of N prompts.

    Attributes:
        loadings: (N, D) a_j.
        intercepts: (N,) d_j.
    """

    loadings: Array
    intercepts: Array


def fit_factors(
    values: NDArray[np.floating], rank: int, *, sweeps: int = 40, start: Factors | None = None
) -> Factors:
    """Fit the item parameters to an (M, N) matrix with NaN where missing.

    Args:
        values: (M, N) scores in [0, 1].
        rank: D; ignored where `start` is given.
        sweeps: Alternations of row and column updates.
        start: Item parameters to go on from. The latent's basis is then kept, so that a network that has
            learned in this basis stays valid.
    """
    seen = ~np.isnan(values)
    filled = np.where(seen, values, 0.5).astype(np.float64)
    factors = _spectral_start(filled, seen, rank) if start is None else start
    for _ in range(sweeps):
        mean, covariance = row_posterior(factors, filled, seen)
        if start is None:
            mean, covariance = _standardise(mean, covariance)
        factors = _columns(factors, filled, seen, mean, covariance)
    return factors


def row_posterior(
    factors: Factors, values: Array, seen: NDArray[np.bool_], sweeps: int = 2
) -> tuple[Array, Array]:
    """Mean (M, D) and covariance (M, D, D) of the rows' latents given the item parameters."""
    a, d = factors.loadings, factors.intercepts
    rank = a.shape[1]
    outer = (a[:, :, None] * a[:, None, :]).reshape(-1, rank * rank)
    mean: Array = np.zeros((len(values), rank))
    covariance: Array = np.broadcast_to(np.eye(rank), (len(values), rank, rank))
    for _ in range(sweeps):
        spread = covariance.reshape(len(values), -1) @ outer.T
        weight = np.where(seen, _bound(np.sqrt((mean @ a.T + d) ** 2 + spread)), 0.0)
        precision = np.eye(rank) + (weight @ outer).reshape(-1, rank, rank)
        covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
        score = (np.where(seen, values - 0.5, 0.0) - weight * d) @ a
        mean = (covariance @ score[:, :, None])[:, :, 0]
    return mean, covariance


def _bound(xi: Array) -> Array:
    """2 lambda(xi) = tanh(xi / 2) / (2 xi), the curvature of the bound; 1/4 at 0."""
    xi = np.maximum(xi, 1e-4)
    return np.tanh(xi / 2) / (2 * xi)


def _columns(
    factors: Factors, values: Array, seen: NDArray[np.bool_], mean: Array, covariance: Array
) -> Factors:
    """Update (a_j, d_j) of every prompt from the rows' latents, under their Gaussian prior."""
    a, d = factors.loadings, factors.intercepts
    rows, rank = mean.shape
    spread = covariance.reshape(rows, -1) @ (a[:, :, None] * a[:, None, :]).reshape(-1, rank * rank).T
    weight = np.where(seen, _bound(np.sqrt((mean @ a.T + d) ** 2 + spread)), 0.0)
    extended = np.hstack([mean, np.ones((rows, 1))])
    second = extended[:, :, None] * extended[:, None, :]
    second[:, :rank, :rank] += covariance
    size = rank + 1
    precision = (weight.T @ second.reshape(rows, -1)).reshape(-1, size, size)
    precision += np.diag(np.append(np.full(rank, LOADING_PRECISION), INTERCEPT_PRECISION))
    target = np.where(seen, values - 0.5, 0.0).T @ extended
    solved = np.linalg.solve(precision, target[:, :, None])[:, :, 0]
    return Factors(solved[:, :rank], solved[:, rank])


def _spectral_start(values: Array, seen: NDArray[np.bool_], rank: int) -> Factors:
    """Item parameters from an SVD of the centred matrix (missing entries at their column's mean)."""
    count = np.maximum(seen.sum(axis=0), 1)
    mean = (np.where(seen, values, 0.0).sum(axis=0) + 0.5) / (count + 1.0)
    centred = np.where(seen, values - mean, 0.0)
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    kept = min(rank, len(singular))
    loadings = np.zeros((values.shape[1], rank))
    slope = np.maximum(mean * (1 - mean), 0.02)
    loadings[:, :kept] = right[:kept].T * singular[:kept] / np.sqrt(max(len(values), 1)) / slope[:, None]
    # The sign of a singular vector is arbitrary; fixing it keeps results equal across linear algebra builds.
    loadings *= np.where(loadings.sum(axis=0) < 0, -1.0, 1.0)
    bounded = np.clip(mean, 0.01, 0.99)
    return Factors(np.clip(loadings, -4, 4), np.log(bounded / (1 - bounded)))


def _standardise(mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Shift and whiten the latents to the prior's moments; the next column update follows suit."""
    centred = mean - mean.mean(axis=0)
    total = centred.T @ centred / len(mean) + covariance.mean(axis=0)
    root = np.linalg.cholesky(total + 1e-9 * np.eye(mean.shape[1]))
    inverse = np.linalg.inv(root)
    return centred @ inverse.T, inverse @ covariance @ inverse.T
