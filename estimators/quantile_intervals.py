"""Intervals of a distribution's quantiles that cover as often as they say: factors learned by rehearsal.

The score of a rehearsal is how far the true quantile lies from the estimate, in half-widths of the interval
on that side. Its conformal quantile, ceil((n + 1) level) of n (Vovk, Gammerman and Shafer 2005), stretches
both sides. A factor of its own for each side was tried: what an estimator is biased to hangs on its fit and
on the prompts that it then chooses, so that the side which had been safe in rehearsals was missed in earnest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray
from estimators.distribution import ScoreDistribution

__all__ = ["LEVELS", "QuantileFactors", "calibrate_quantiles", "misses"]

Array = NDArray[np.float64]
LEVELS = (0.8, 0.9, 0.95)
LEAST_HALF_WIDTH = 1e-3  # of a score: a quantile missed by less is as good as met
MOST = 10.0


@dataclass(frozen=True)
class QuantileFactors:
    """What the sides of a quantile's interval are stretched by.

    Attributes:
        levels: (L,) levels of the intervals.
        rows: (A,) numbers of rows of the studies that were rehearsed, increasing.
        cells: (B,) cells per row that they had acquired, increasing.
        at: (Q,) quantiles, increasing.
        stretch: (L, A, B, Q) factors of both sides.
        groups: Rehearsals behind each factor.
    """

    levels: Array
    rows: Array
    cells: Array
    at: Array
    stretch: Array
    groups: int

    def factors(self, at: Sequence[float], level: float, rows: int, cells: float) -> Array:
        """(Q,) factors, for `ScoreDistribution.intervals`.

        Interpolated in the logarithms of rows and cells per row and in the quantile; outside of what was
        rehearsed the nearest counts.

        Args:
            at: Quantiles asked for.
            level: One of the calibrated levels.
            rows: Rows of the study.
            cells: Cells acquired per row.

        Raises:
            BadInputError: The level was not calibrated.
        """
        known = np.flatnonzero(np.isclose(self.levels, level))
        if len(known) == 0:
            raise BadInputError(
                f"intervals of level {level:g} are not calibrated",
                f"calibrated levels: {', '.join(f'{value:g}' for value in self.levels)}",
            )
        found = _interpolate(np.log(self.rows), self.stretch[known[0]], 0, [math.log(rows)])
        found = _interpolate(np.log(self.cells), found, 1, [math.log(max(cells, 1e-9))])
        return np.asarray(_interpolate(self.at, found, 2, at)[0, 0])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able description."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return {**arrays, "groups": self.groups}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read back what `to_json` gave."""
        arrays = {name: np.array(content[name], dtype=np.float64) for name in _ARRAYS}
        return cls(**arrays, groups=int(content["groups"]))


_ARRAYS = ("levels", "rows", "cells", "at", "stretch")


def misses(found: ScoreDistribution, truth: FloatArray, at: Sequence[float], level: float) -> Array:
    """(Q,) how far the true quantiles lie from the estimates, in half-widths of that side.

    Args:
        found: What was estimated.
        truth: (Q,) true quantiles.
        at: (Q,) quantiles.
        level: Level of the interval that is to be stretched.
    """
    middle, (low, high) = found.quantiles(at), found.intervals(at, level)
    off = np.asarray(truth, dtype=np.float64) - middle
    half = np.where(off < 0.0, middle - low, high - middle)
    return np.asarray(np.abs(off) / np.maximum(half, LEAST_HALF_WIDTH))


def calibrate_quantiles(
    ratios: Array,
    *,
    levels: Sequence[float],
    rows: Sequence[int],
    cells: Sequence[float],
    at: Sequence[float],
) -> QuantileFactors:
    """Factors from the `misses` of G rehearsals per number of rows.

    Args:
        ratios: (G, L, A, B, Q) misses, levels and numbers as given.
        levels: (L,) levels of the intervals.
        rows: (A,) numbers of rows.
        cells: (B,) cells per row.
        at: (Q,) quantiles.
    """
    n, ordered = len(ratios), np.sort(ratios, axis=0)
    place = [min(math.ceil((n + 1) * level - 1e-9), n) - 1 for level in levels]
    picked = np.stack([ordered[k, i] for i, k in enumerate(place)])  # (L, A, B, Q)
    return QuantileFactors(
        np.asarray(levels, dtype=np.float64),
        np.asarray(rows, dtype=np.float64),
        np.asarray(cells, dtype=np.float64),
        np.asarray(at, dtype=np.float64),
        np.minimum(picked, MOST),
        n,
    )


def _interpolate(grid: Array, values: Array, axis: int, at: Sequence[float]) -> Array:
    """Values at other places of one axis, linear between the grid's points and constant beyond."""
    last = len(grid) - 1
    place = np.interp(np.asarray(at, dtype=np.float64), grid, np.arange(last + 1.0))
    left = np.minimum(place.astype(np.intp), max(last - 1, 0))
    share = (place - left).reshape([-1] + [1] * (values.ndim - axis - 1))
    right = np.minimum(left + 1, last)
    return np.asarray(np.take(values, left, axis) * (1.0 - share) + np.take(values, right, axis) * share)
