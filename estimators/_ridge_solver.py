"""Ridge regression from any subset of columns of one matrix to weighted sums of its columns.

The Gram matrix of all columns is computed once, so that each new subset costs one small factorisation; with
more columns observed than rows in the matrix, the rows' kernel takes its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

__all__ = ["RidgeSolver"]

Array = NDArray[Any]
GRAM_PROMPTS = 4096  # up to this many columns the Gram matrix is kept (134 MB)


class RidgeSolver:
    """Ridge regressions on the columns of `centred` (M, N), whose columns have mean 0."""

    def __init__(self, centred: Array) -> None:
        self.centred = centred.astype(np.float64)
        wide = centred.shape[1] > GRAM_PROMPTS
        self.gram: Array | None = None if wide else self.centred.T @ self.centred

    def held_out_errors(self, columns: Array, targets: Array, penalties: Array) -> Array:
        """(P, T) mean squared leave-one-out error of predicting `targets` (M, T), for each penalty."""
        left, strength, _ = np.linalg.svd(self.centred[:, columns], full_matrices=False)
        along = left.T @ targets
        errors = []
        for penalty in penalties:
            shrunk = strength**2 / (strength**2 + penalty)
            residual = targets - (left * shrunk) @ along
            errors.append(_held_out(residual, left**2 @ shrunk))
        return np.stack(errors)

    def weights(self, columns: Array, acquired: Array, penalty: float) -> Array:
        """(M, B) weight of each history row: predictions are `centred.T @ weights`.

        Args:
            columns: (K,) observed columns.
            acquired: (B, K) their centred scores in the rows to predict.
            penalty: Ridge penalty.
        """
        block = self.centred[:, columns]
        if len(columns) <= len(block):
            factor = self._factor(columns, block, penalty)
            return np.asarray(block @ cho_solve(factor, acquired.T))
        kernel = block @ block.T + penalty * np.eye(len(block))
        return np.asarray(cho_solve(cho_factor(kernel), block @ acquired.T))

    def residual_variance(self, columns: Array, targets: Array, penalty: float) -> Array:
        """(T,) mean squared leave-one-out error of predicting `targets` (M, T)."""
        block = self.centred[:, columns]
        m = len(block)
        if len(columns) <= m:
            factor = self._factor(columns, block, penalty)
            solved = cho_solve(factor, block.T)  # (K, M)
            residual = targets - block @ (solved @ targets)
            return _held_out(residual, (block * solved.T).sum(axis=1))
        inverse = cho_solve(cho_factor(block @ block.T + penalty * np.eye(m)), np.eye(m))
        return _held_out(penalty * (inverse @ targets), 1.0 - penalty * np.diag(inverse))

    def _factor(self, columns: Array, block: Array, penalty: float) -> tuple[Array, bool]:
        gram = block.T @ block if self.gram is None else self.gram[np.ix_(columns, columns)]
        factor: tuple[Array, bool] = cho_factor(gram + penalty * np.eye(len(columns)))
        return factor


def _held_out(residual: Array, leverage: Array) -> Array:
    """(T,) mean squared leave-one-out residual; the mean of each target was fitted too."""
    left = np.maximum(1.0 - leverage - 1.0 / len(leverage), 1e-8)
    return np.asarray(((residual / left[:, None]) ** 2).mean(axis=0))
