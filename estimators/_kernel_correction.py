"""Kernel ridge regression of what an estimator gets wrong, with its settings chosen by leaving one out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KernelCorrection", "fit_correction"]

Array = NDArray[Any]
# (power of the distance, width as a share of the median distance to that power)
KERNELS = ((2, 0.125), (2, 0.25), (2, 0.5), (2, 1.0), (2, 2.0), (1, 0.25), (1, 0.5), (1, 1.0))
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
CHOOSING_ROWS = 700


@dataclass(frozen=True)
class KernelCorrection:
    """f(x) = sum_i coefficient_i exp(-|x - features_i|^power / bandwidth).

    Attributes:
        features: (n, w) features of the history rows.
        coefficients: (n,) all 0 where no setting predicted held-out residuals better than nothing.
        bandwidth: Distance to the power `power` over which the kernel falls to 1 / e.
        spread: Root mean square of corrected held-out residuals over the estimator's own deviations.
        power: 2 for the Gaussian kernel, 1 for the exponential one (rougher functions).
        error: Root mean square of the corrected held-out residuals.
    """

    features: Array
    coefficients: Array
    bandwidth: float
    spread: float
    power: int = 2
    error: float = float("nan")

    def __call__(self, features: Array) -> Array:
        """(B,) corrections of B rows (B, w)."""
        distances = _squared_distances(features, self.features)
        return np.asarray(_kernel(distances, self.power, self.bandwidth) @ self.coefficients)


def fit_correction(
    features: Array, residual: Array, std: Array, rng: np.random.Generator
) -> KernelCorrection:
    """Learn residual (n,) from features (n, w).

    Args:
        features: One row per history method.
        residual: Truth minus estimate, the estimate from an estimator that had not seen the row.
        std: (n,) that estimator's standard deviation of the residual.
        rng: Draws the rows that settings are chosen on, where there are many.
    """
    chosen = np.sort(rng.permutation(len(features))[:CHOOSING_ROWS])
    target = residual[chosen]
    near = _squared_distances(features[chosen], features[chosen])
    best, ridge, bandwidth, power = target, np.inf, 1.0, 2
    for kind, share in KERNELS:
        width = share * _median(near) ** (kind / 2)
        for candidate, left in _left_out(_kernel(near, kind, width), target).items():
            if (left**2).sum() < (best**2).sum():
                best, ridge, bandwidth, power = left, candidate, width, kind
    spread = float(np.sqrt(np.mean((best / np.maximum(std[chosen], 1e-6)) ** 2)))
    coefficients: Array = np.zeros(len(features))
    if np.isfinite(ridge):
        kernel = _kernel(_squared_distances(features, features), power, bandwidth)
        coefficients = np.linalg.solve(kernel + ridge * np.eye(len(kernel)), residual)
    error = float(np.sqrt(np.mean(best**2)))
    return KernelCorrection(features, coefficients, bandwidth, spread, power, error)


def _left_out(kernel: Array, target: Array) -> dict[float, Array]:
    """Residuals (n,) of each row predicted from the others, for each ridge."""
    values, vectors = np.linalg.eigh(kernel)
    along, squares = vectors.T @ target, vectors**2
    return {
        ridge: (vectors @ (along / (values + ridge))) / (squares @ (1.0 / (values + ridge)))
        for ridge in RIDGES
    }


def _kernel(squares: Array, power: int, bandwidth: float) -> Array:
    """The kernel's values at squared distances."""
    return np.asarray(np.exp(-(squares if power == 2 else np.sqrt(squares)) / bandwidth))


def _squared_distances(left: Array, right: Array) -> Array:
    left, right = left.astype(np.float64), right.astype(np.float64)
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(np.maximum(squares, 0.0))


def _median(squares: Array) -> float:
    return max(float(np.median(squares)), 1e-6)
