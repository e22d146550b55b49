"""How good estimates of benchmark scores are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

__all__ = ["LEVEL", "estimate_metrics", "normal_interval", "rank_correlation"]

LEVEL = 0.95
Z95 = 1.959964
Floats = NDArray[np.float64]


def normal_interval(mean: Floats, std: Floats) -> tuple[Floats, Floats]:
    """Ends of the 95 % interval mean +- 1.96 std, cut to [0, 1]."""
    return np.clip(mean - Z95 * std, 0.0, 1.0), np.clip(mean + Z95 * std, 0.0, 1.0)


def estimate_metrics(mean: Floats, low: Floats, high: Floats, truth: Floats) -> dict[str, float]:
    """Errors and intervals of B estimates.

    Args:
        mean: (B,) estimated benchmark scores.
        low: (B,) lower ends of their intervals.
        high: (B,) upper ends.
        truth: (B,) true benchmark scores.

    Returns:
        mae, rmse, bias (estimate minus truth), coverage and mean_width (full width).
    """
    error = mean - truth
    inside = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "bias": float(error.mean()),
        "coverage": float(inside.mean()),
        "mean_width": float((high - low).mean()),
    }


def rank_correlation(mean: NDArray[np.float64], truth: NDArray[np.float64]) -> float | None:
    """Kendall's tau-b between estimated and true scores; None where it is not defined."""
    if len(mean) < 2 or np.ptp(mean) == 0 or np.ptp(truth) == 0:
        return None
    return float(kendalltau(mean, truth).statistic)
