"""Filling the gaps of a history, for estimators that need complete rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from estimators._factor_analysis import expected_scores, fit_factors
from estimators._shrunk_covariance import shrunk_covariance

__all__ = ["imputed"]

FEW_ROWS = 200
RANK = 8


def imputed(values: NDArray[np.float64], groups: NDArray[np.intp]) -> NDArray[np.float64]:
    """(M, N) the same scores with each missing one replaced by its expectation given the row's others."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    few = len(values) <= FEW_ROWS
    model = shrunk_covariance(values, groups) if few else fit_factors(values, RANK, groups)
    return np.where(missing, expected_scores(model, values), values)
