"""Gibbs sampling of the two-way logistic model with all of its variances unknown.

P(y_ij = 1) = Phi((theta_i + easiness_j) / 1.7), which is the logistic function within .01, so that latent
normal variables make every step a draw from a known distribution (Albert and Chib 1993).
theta_i = x_i . psi + u_i with u from a mixture of two normals: the scores of many models have a long tail or
two heaps, those of one model's templates have neither, and the cells say which.
easiness_j = z_j . gamma + v_j.
Standard deviations are half-Cauchy (Gelman 2006) and, where it is cheap, drawn twice, given the effects and
given their ratio to it, since few cells would move them slowly else (Yu and Meng 2011).

A fit with the variances at their best values claims far too much of the ends of a distribution when there
are a handful of cells per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from estimators._two_way_logistic import Cells

__all__ = ["Effects", "sample_effects"]

Array = NDArray[np.float64]
SCALE = 1.7  # of the normal distribution function that is nearest to the logistic one
NOISE = SCALE**2
LEVEL_VARIANCE = 4.0  # prior variance of the common logit
SEPARATION = 1.0  # median of the standard deviation of the heaps' means around it
HEAPS = 2
CONCENTRATION = 1.0  # of the heaps' shares
ROW_SCALE, COLUMN_SCALE = 2.0, 2.0  # medians of the prior standard deviations, logits
BURN_IN = 200
EVERY = 2  # sweeps between draws that are kept
SMALLEST, LARGEST = 0.02, 20.0  # standard deviation of a heap


@dataclass(frozen=True)
class Effects:
    """One draw: (R,) theta and (N,) easiness, logits."""

    theta: Array
    easiness: Array


def sample_effects(cells: Cells, n: int, rng: np.random.Generator) -> Iterator[Effects]:
    """Draw n times, one after the other (draws are not independent)."""
    chain = _Chain(cells, rng)
    for _ in range(BURN_IN):
        chain.sweep()
    for _ in range(n):
        for _ in range(EVERY):
            chain.sweep()
        yield chain.effects()


class _Chain:
    """The state of the sampler."""

    def __init__(self, cells: Cells, rng: np.random.Generator) -> None:
        r, n = cells.shape
        self.cells, self.rng = cells, rng
        ones = cells.values > 0
        self.floor, self.ceiling = np.where(ones, 1.0, 0.0), np.where(ones, 0.0, 1.0)
        self.per_row = np.bincount(cells.rows, minlength=r).astype(np.float64)
        self.per_column = np.bincount(cells.columns, minlength=n).astype(np.float64)
        self.seen = np.flatnonzero(self.per_column)
        self.means, self.spreads = np.linspace(-1.0, 1.0, HEAPS), np.full(HEAPS, 0.7)
        self.shares, self.level = np.full(HEAPS, 1.0 / HEAPS), 0.0
        self.mixing = np.ones(HEAPS)  # of the half-Cauchy priors
        self.own_rows, self.own_columns = np.zeros(r), np.zeros(n)
        self.columns, self.separation = _Scale(COLUMN_SCALE), _Scale(SEPARATION)
        self.by_rows = _Slopes(cells.row_covariates, self.per_row)
        self.by_columns = _Slopes(cells.column_covariates, self.per_column)

    def effects(self) -> Effects:
        """The present draw; columns without a cell are drawn from their prior."""
        own = self.columns.value * self.rng.standard_normal(len(self.own_columns))
        own[self.seen] = self.own_columns[self.seen]
        return Effects(self.own_rows + self.by_rows.shift, own + self.by_columns.shift)

    def sweep(self) -> None:
        """Draw everything once, each given the rest."""
        rows, columns = self.cells.rows, self.cells.columns
        easiness = self.own_columns + self.by_columns.shift
        latent = self._latent((self.own_rows + self.by_rows.shift)[rows] + easiness[columns])
        left = latent - easiness[columns]
        self._rows(_sums(rows, left - self.by_rows.shift[rows], len(self.own_rows)))
        self.by_rows.draw(_sums(rows, left - self.own_rows[rows], len(self.own_rows)), self.rng)
        left = latent - (self.own_rows + self.by_rows.shift)[rows]
        self._columns(left - self.by_columns.shift[columns])
        gaps = _sums(columns, left - self.own_columns[columns], len(self.own_columns))
        self.by_columns.draw(gaps, self.rng)
        self._trade()

    def _latent(self, logit: Array) -> Array:
        """(C,) normal variables above 0 where the cell is 1, below where it is 0."""
        below = ndtr(-logit / SCALE)
        place = below * self.floor + self.rng.random(len(logit)) * (
            below * self.ceiling + (1.0 - below) * self.floor
        )
        return np.asarray(logit + SCALE * ndtri(np.clip(place, 1e-12, 1.0 - 1e-12)))

    def _rows(self, total: Array) -> None:
        """Which heap each row belongs to, its own effect, then the heaps; `total` (R,) of what is left."""
        count, rng = self.per_row, self.rng
        mean = total / np.maximum(count, 1)
        variance = self.spreads**2 + (NOISE / np.maximum(count, 1))[:, None]
        fit = -0.5 * np.log(variance) - 0.5 * (mean[:, None] - self.means) ** 2 / variance
        chance = np.log(self.shares) + np.where(count[:, None] > 0, fit, 0.0)
        chance = np.exp(chance - chance.max(axis=1, keepdims=True)).cumsum(axis=1)
        drawn = rng.random((len(count), 1)) * chance[:, -1:]
        self.heap = np.minimum((chance < drawn).sum(axis=1), HEAPS - 1)
        centre, inverse = self.means[self.heap], 1.0 / self.spreads[self.heap] ** 2
        precision = count / NOISE + inverse
        noise = rng.standard_normal(len(count)) / np.sqrt(precision)
        self.own_rows = (total / NOISE + centre * inverse) / precision + noise
        self._heaps()

    def _heaps(self) -> None:
        rng, count = self.rng, np.bincount(self.heap, minlength=HEAPS)
        self.shares = np.maximum(rng.dirichlet(CONCENTRATION + count), 1e-12)
        total = np.bincount(self.heap, self.own_rows, HEAPS)
        apart = max(self.separation.value, SMALLEST) ** 2
        precision = count / self.spreads**2 + 1.0 / apart
        mean = (total / self.spreads**2 + self.level / apart) / precision
        self.means = mean + rng.standard_normal(HEAPS) / np.sqrt(precision)
        off = self.own_rows - self.means[self.heap]
        squares = np.bincount(self.heap, off**2, HEAPS)
        spread = np.sqrt((squares / 2.0 + 1.0 / self.mixing) / rng.gamma((count + 1.0) / 2.0))
        self.spreads = np.clip(spread, SMALLEST, LARGEST)
        self.mixing = (1.0 / ROW_SCALE**2 + 1.0 / self.spreads**2) / rng.gamma(1.0, size=HEAPS)
        precision_level = HEAPS / apart + 1.0 / LEVEL_VARIANCE
        self.level = self.means.sum() / apart / precision_level
        self.level += rng.standard_normal() / np.sqrt(precision_level)
        self.separation.draw(self.means - self.level, rng)

    def _columns(self, left: Array) -> None:
        """The columns' own effects and their scale; `left` (C,) of what is left of each cell."""
        count, scale = self.per_column[self.seen], self.columns
        precision = count / NOISE + 1.0 / scale.value**2
        total = _sums(self.cells.columns, left, len(self.own_columns))[self.seen]
        noise = self.rng.standard_normal(len(count)) / np.sqrt(precision)
        own = total / NOISE / precision + noise
        scale.draw(own, self.rng)
        unit = own / scale.value
        grown = scale.redraw(float(unit**2 @ count) / NOISE, float(unit @ total) / NOISE, self.rng)
        self.own_columns[self.seen] = unit * grown

    def _trade(self) -> None:
        """What rows and columns have in common may belong to either: draw how it is divided."""
        inverse = 1.0 / self.spreads[self.heap] ** 2
        own = self.own_columns[self.seen]
        precision = inverse.sum() + len(own) / self.columns.value**2
        if precision <= 0.0:
            return
        off = float((self.own_rows - self.means[self.heap]) @ inverse) - own.sum() / self.columns.value**2
        shift = off / precision + self.rng.standard_normal() / np.sqrt(precision)
        self.own_rows = self.own_rows - shift
        self.own_columns[self.seen] += shift


class _Scale:
    """A standard deviation with a half-Cauchy prior."""

    def __init__(self, median: float) -> None:
        self.median, self.value, self._mixing = median, 1.0, 1.0

    def draw(self, effects: Array, rng: np.random.Generator) -> None:
        """Given the effects that it is the standard deviation of."""
        squares = float(effects @ effects) / 2.0 + 1.0 / self._mixing
        self.value = float(np.sqrt(squares / rng.gamma((len(effects) + 1.0) / 2.0)))
        self._mixing = (1.0 / self.median**2 + 1.0 / self.value**2) / rng.gamma(1.0)

    def redraw(self, precision: float, pull: float, rng: np.random.Generator) -> float:
        """Given the effects' ratios to it, where the cells' likelihood of it is normal with these moments."""
        if precision <= 0.0:
            return self.value
        proposed = pull / precision + rng.standard_normal() / np.sqrt(precision)
        accepted = (self.median**2 + self.value**2) / (self.median**2 + proposed**2)
        if proposed > 1e-3 and rng.random() < accepted:
            self.value = float(proposed)
        return self.value


class _Slopes:
    """Effects of covariates: normal, their standard deviation unknown."""

    def __init__(self, covariates: Array, count: Array) -> None:
        self.covariates = covariates
        self.cross = covariates.T @ (count[:, None] * covariates) / NOISE
        self.scale = _Scale(ROW_SCALE)
        self.shift = np.zeros(len(covariates))

    def draw(self, total: Array, rng: np.random.Generator) -> None:
        """Given (R or N,) sums of what is left of the cells."""
        p = self.covariates.shape[1]
        if p == 0:
            return
        root = np.linalg.cholesky(self.cross + np.eye(p) / self.scale.value**2)
        pull = np.linalg.solve(root, self.covariates.T @ total / NOISE)
        slopes = np.linalg.solve(root.T, pull + rng.standard_normal(p))
        self.scale.draw(slopes, rng)
        self.shift = self.covariates @ slopes


def _sums(index: NDArray[np.intp], values: Array, size: int) -> Array:
    """(size,) sum of the values at each index."""
    return np.bincount(index, values, size).astype(np.float64)
