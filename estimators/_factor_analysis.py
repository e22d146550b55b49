"""Bayesian factor analysis of a partly observed matrix by variational expectation maximisation.

y_mj = mean_j + loading_j . u_m + e_mj, u_m ~ N(0, I), e_mj ~ N(0, noise_j),
loading_jk ~ N(centre_dk, noise_j / a_k) for prompts j of dataset d. The loadings are uncertain too (Bishop,
Variational principal components, 1999): with few rows that is what keeps the latent from being taken for
known, and the precisions a_k, learned, switch needless dimensions off. The learned centres say that a method
that is better is better all over a dataset: they matter with few rows, and for prompts that nobody answered.
Missing entries drop out of both steps. The latent is re-standardised in each sweep (parameter-expanded EM,
Liu, Rubin and Wu 1998), which saves most of the sweeps that plain EM needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FactorModel", "column_moments", "expected_scores", "factor_posterior", "fit_factors"]

Array = NDArray[np.floating]
LEAST_NOISE = 1e-4
MOST_PRECISION = 1e6
PSEUDO_PROMPTS = 5.0


@dataclass(frozen=True)
class FactorModel:
    """Parameters of N prompts.

    Attributes:
        mean: (N,) expected score.
        loadings: (N, r) derivative of the score by the latent.
        noise: (N,) variance that the latent does not explain, uncertainty of the loadings included.
    """

    mean: Array
    loadings: Array
    noise: Array

    @property
    def rank(self) -> int:
        """Number of latent dimensions."""
        return int(self.loadings.shape[1])


@dataclass(frozen=True)
class _State:
    """A FactorModel in the making.

    Attributes:
        model: The parameters; noise without the uncertainty of the loadings.
        doubt: (1, r, r), or (N, r, r) where entries are missing: covariance of a loading by its noise.
        precision: (r,) prior precision a_k of the loadings.
        centre: (N, r) prior mean of each prompt's loading, equal within a dataset.
    """

    model: FactorModel
    doubt: Array
    precision: Array
    centre: Array


@dataclass(frozen=True)
class _Data:
    """The matrix: scores with 0 where missing, what is present, each column's dataset and moments."""

    filled: Array
    mask: NDArray[np.bool_]
    groups: NDArray[np.intp]
    prior: FactorModel

    @property
    def count(self) -> Array:
        """(N,) scores per column."""
        count: Array = self.mask.sum(axis=0).astype(np.float64)
        return count


def fit_factors(
    values: Array,
    rank: int,
    groups: NDArray[np.intp],
    *,
    sweeps: int = 60,
    start: FactorModel | None = None,
    tolerance: float = 1e-4,
) -> FactorModel:
    """Fit by EM, from `start` (first columns the same prompts) or from a singular value decomposition.

    Args:
        values: (M, N) scores, NaN = missing; a column may be empty.
        rank: Number of latent dimensions.
        groups: (N,) dataset of each column.
        sweeps: Most sweeps.
        start: Parameters to start from.
        tolerance: Stop when the mean noise changes by less than this share in a sweep.
    """
    mask = ~np.isnan(values)
    filled = np.where(mask, values, 0.0)
    data = _Data(filled, mask, groups, column_moments(values, groups))
    model = _decompose(data, rank) if start is None else _extend(start, rank, data.prior)
    count = np.array([float(len(values))]) if mask.all() else data.count
    doubt = np.eye(rank) / (count + 1.0)[:, None, None]
    state = _State(model, doubt, np.ones(rank), _centres(model.loadings, model.noise, groups))
    for _ in range(sweeps):
        before = state.model.noise.mean()
        state = _sweep(data, state)
        if abs(state.model.noise.mean() / before - 1.0) < tolerance:
            break
    return _with_doubt(state, data)


def factor_posterior(model: FactorModel, observed: Array) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean (B, r) and covariance (B, r, r) of the latents given each row's observed scores (B, N)."""
    latent = np.zeros((len(observed), model.rank))
    precision = np.empty((len(observed), model.rank, model.rank))
    missing = np.isnan(observed)
    mostly = missing.mean(axis=1) < 0.5
    scaled = model.loadings / model.noise[:, None] if mostly.any() else model.loadings[:0]
    whole = scaled.T @ model.loadings if mostly.any() else np.zeros((model.rank, model.rank))
    for b, row in enumerate(observed):  # a gather of the fewer prompts beats masked products
        few = np.flatnonzero(missing[b] if mostly[b] else ~missing[b])
        block = model.loadings[few]
        product = block.T @ (block / model.noise[few, None])
        precision[b] = whole - product if mostly[b] else product
        if mostly[b]:
            latent[b] = np.where(missing[b], 0.0, row - model.mean) @ scaled
        else:
            latent[b] = ((row[few] - model.mean[few]) / model.noise[few]) @ block
    covariance = np.linalg.inv(np.eye(model.rank) + precision)
    return (covariance @ latent[:, :, None])[:, :, 0], covariance


def expected_scores(model: FactorModel, observed: Array) -> NDArray[Any]:
    """(B, N) expectation of every score given its row's observed ones, in [0, 1]."""
    latent, _ = factor_posterior(model, observed)
    return np.clip(model.mean + latent @ model.loadings.T, 0.0, 1.0)


def _with_doubt(state: _State, data: _Data) -> FactorModel:
    """The model of a new row: not knowing loadings and mean exactly adds to its noise (E[u u'] = I)."""
    trace = np.trace(state.doubt, axis1=1, axis2=2)
    noise = state.model.noise * (1.0 + trace + 1.0 / (data.count + 1.0))
    return FactorModel(state.model.mean, state.model.loadings, noise)


def column_moments(values: Array, groups: NDArray[np.intp]) -> FactorModel:
    """Column means and variances, shrunk by one pseudo-observation to those of the dataset; no loadings.

    A dataset's are shrunk in the same way to those of all entries.
    """
    mask = ~np.isnan(values)
    filled = np.where(mask, values, 0.0)
    count, total = mask.sum(axis=0), filled.sum(axis=0)
    overall = total.sum() / max(int(count.sum()), 1)
    by_group = (np.bincount(groups, total) + overall) / (np.bincount(groups, count) + 1.0)
    mean = (total + by_group[groups]) / (count + 1.0)
    squares = (np.where(mask, filled - mean, 0.0) ** 2).sum(axis=0)
    spread = np.maximum((squares.sum() + LEAST_NOISE) / (count.sum() + 1.0), LEAST_NOISE)
    return FactorModel(mean, np.zeros((len(mean), 0)), (squares + spread) / (count + 1.0))


def _decompose(data: _Data, rank: int) -> FactorModel:
    """Start: leading singular vectors of the centred matrix, empty entries at their column's mean."""
    centred = np.where(data.mask, data.filled - data.prior.mean, 0.0)
    m, n = centred.shape
    gram = centred @ centred.T if m < n else centred.T @ centred
    values, vectors = np.linalg.eigh(gram)
    leading = np.maximum(values[::-1][:rank], 0.0)
    basis = vectors[:, ::-1][:, :rank]
    loadings = centred.T @ basis if m < n else basis * np.sqrt(leading)
    loadings = np.pad(loadings / np.sqrt(m), ((0, 0), (0, rank - loadings.shape[1])))
    own = data.prior.noise
    return FactorModel(data.prior.mean, loadings, np.maximum(own - (loadings**2).sum(axis=1), 0.2 * own))


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


def _sweep(data: _Data, state: _State) -> _State:
    """One sweep over latents, loadings, means, noise and prior precisions."""
    model = state.model
    residual = np.where(data.mask, data.filled - model.mean, 0.0)
    scaled = model.loadings / model.noise[:, None]
    latent, second, second_by_column = _latents(data, state, residual, scaled)
    cross = residual.T @ latent  # (N, r)
    doubt = np.linalg.inv(second_by_column + np.diag(state.precision))  # (1 or N, r, r)
    pull = state.centre * state.precision
    loadings = _times(doubt, cross + pull)
    unexplained = (
        (residual**2).sum(axis=0)
        - (loadings * cross).sum(axis=1)
        - ((loadings - state.centre) * pull).sum(axis=1)
    )
    noise = np.maximum((unexplained + data.prior.noise) / (data.count + 1.0), LEAST_NOISE)
    explained = (loadings * (data.mask.T @ latent)).sum(axis=1)
    mean = (data.filled.sum(axis=0) - explained + data.prior.mean) / (data.count + 1.0)
    return _standardised(FactorModel(mean, loadings, noise), doubt, second / len(latent), data.groups)


def _latents(data: _Data, state: _State, residual: Array, scaled: Array) -> tuple[Array, Array, Array]:
    """Posterior means (M, r) of the latents; sum of E[u u'] over rows (r, r), and per column (1 or N, r, r).

    Where nothing is missing all rows share one covariance and all columns one second moment.
    """
    rank = state.model.rank
    if len(state.doubt) == 1:
        return _shared_latents(residual, scaled, state)
    outer = scaled[:, :, None] * state.model.loadings[:, None, :] + state.doubt
    covariances = np.linalg.inv(np.eye(rank) + _masked_sums(data.mask, outer))  # (M, r, r)
    latent = _times(covariances, residual @ scaled)
    moments = covariances + latent[:, :, None] * latent[:, None, :]
    return latent, moments.sum(axis=0), _masked_sums(data.mask.T, moments)


def _shared_latents(residual: Array, scaled: Array, state: _State) -> tuple[Array, Array, Array]:
    """The same where every row is complete."""
    m, n = residual.shape
    precision = np.eye(state.model.rank) + state.model.loadings.T @ scaled + n * state.doubt[0]
    covariance = np.linalg.inv(precision)
    latent = (residual @ scaled) @ covariance
    second = latent.T @ latent + m * covariance
    return latent, second, second[None]


def _standardised(model: FactorModel, doubt: Array, second: Array, groups: NDArray[np.intp]) -> _State:
    """Move the latent's second moment into the loadings, turn to principal axes, re-learn the priors."""
    root = np.linalg.cholesky(second + 1e-9 * np.eye(model.rank))
    loadings = model.loadings @ root
    _, axes = np.linalg.eigh(loadings.T @ (loadings / model.noise[:, None]))
    turn = root @ axes
    loadings = model.loadings @ turn
    doubt = turn.T @ doubt @ turn
    centre = _centres(loadings, model.noise, groups)
    spread = (loadings - centre) ** 2 / model.noise[:, None] + np.diagonal(doubt, axis1=1, axis2=2)
    precision = np.minimum(1.0 / np.maximum(spread.mean(axis=0), 1e-12), MOST_PRECISION)
    return _State(FactorModel(model.mean, loadings, model.noise), doubt, precision, centre)


def _centres(loadings: Array, noise: Array, groups: NDArray[np.intp]) -> Array:
    """(N, r) mean loading of each prompt's dataset, shrunk by a few pseudo-prompts to that of all prompts."""
    certainty = 1.0 / noise
    overall = (certainty @ loadings) / certainty.sum()
    onehot = np.eye(int(groups.max()) + 1)[groups] * certainty[:, None]  # (N, datasets)
    few = PSEUDO_PROMPTS * certainty.mean()
    centres = (onehot.T @ loadings + few * overall) / (onehot.sum(axis=0) + few)[:, None]
    return np.asarray(centres[groups])


def _times(matrices: Array, vectors: Array) -> Array:
    """(A, r) products of (1 or A, r, r) symmetric matrices with (A, r) vectors."""
    if len(matrices) == 1:
        return np.asarray(vectors @ matrices[0])
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])


def _masked_sums(mask: NDArray[np.bool_], matrices: Array) -> Array:
    """(A, r, r): sum over b of mask[a, b] times the symmetric matrices[b]; only triangles are multiplied.

    Single precision: the sums only enter inverses of matrices with a ridge.
    """
    rank = matrices.shape[1]
    rows, columns = np.triu_indices(rank)
    product = mask.astype(np.float32) @ matrices[:, rows, columns].astype(np.float32)
    full = np.empty((len(mask), rank, rank))
    full[:, rows, columns] = product
    full[:, columns, rows] = product
    return np.asarray(full)
