"""From a fitted estimator's view of a row to the estimate that the leaderboard shows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from estimators import Estimator
from storage.tables import Estimate

__all__ = ["estimate_rows"]


def estimate_rows(estimator: Estimator, scores: NDArray[np.float64], level: float) -> list[Estimate]:
    """Estimate each of R rows; study, method and cost are left for the caller to fill in.

    Args:
        estimator: The fitted estimator.
        scores: (R, N) scores known, NaN = unknown.
        level: Level of the interval, such as 0.95.
    """
    result = estimator.benchmark_score(scores)
    half = float(norm.ppf(0.5 + level / 2)) * result.std
    known = (~np.isnan(scores)).sum(axis=1)
    return [
        Estimate(
            study_id=0,
            benchmark_id=0,
            method_id=0,
            step=0,
            score=float(np.clip(result.mean[i], 0, 1)),
            std=float(result.std[i]),
            low=float(np.clip(result.mean[i] - half[i], 0, 1)),
            high=float(np.clip(result.mean[i] + half[i], 0, 1)),
            level=level,
            interval_kind="complete" if known[i] == scores.shape[1] else estimator.interval_kind,
            acquired=int(known[i]),
            total=scores.shape[1],
        )
        for i in range(scores.shape[0])
    ]
