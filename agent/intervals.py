"""From a fitted estimator's view of a row to the estimate that the leaderboard shows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from assay.errors import BadInputError
from estimators import Estimator, ScoreEstimate
from estimators.intervals import ConformalIntervals
from storage.tables import Estimate

__all__ = ["bounds", "estimate_rows", "unplaced_estimate"]


def estimate_rows(
    estimator: Estimator,
    scores: NDArray[np.float64],
    level: float,
    conformal: ConformalIntervals | None = None,
) -> list[Estimate]:
    """Estimate each of R rows; study, method and cost are left for the caller to fill in.

    Args:
        estimator: The fitted estimator.
        scores: (R, N) scores known, NaN = unknown.
        level: Level of the interval, such as 0.95.
        conformal: Factors learned for the way in which the scores were chosen, where there are any.
    """
    result = estimator.benchmark_score(scores)
    known = (~np.isnan(scores)).sum(axis=1)
    low, high, kinds = bounds(estimator, result, known, level, conformal)
    complete = known == scores.shape[1]
    return [
        unplaced_estimate(
            float(result.mean[i]),
            float(result.std[i]),
            (float(low[i]), float(high[i])),
            level=level,
            kind="complete" if complete[i] else kinds[i],
            acquired=int(known[i]),
            total=scores.shape[1],
        )
        for i in range(scores.shape[0])
    ]


def unplaced_estimate(
    mean: float,
    std: float,
    interval: tuple[float, float],
    *,
    level: float,
    kind: str,
    acquired: int,
    total: int,
    probability_best: float | None = None,
) -> Estimate:
    """An estimate whose study, method, step and cost are still to be filled in; all scores within [0, 1]."""
    low, high = interval
    return Estimate(
        study_id=0,
        benchmark_id=0,
        method_id=0,
        step=0,
        score=float(np.clip(mean, 0, 1)),
        std=std,
        low=float(np.clip(low, 0, 1)),
        high=float(np.clip(high, 0, 1)),
        level=level,
        interval_kind=kind,
        acquired=acquired,
        total=total,
        probability_best=probability_best,
    )


def bounds(
    estimator: Estimator,
    result: ScoreEstimate,
    known: NDArray[np.intp],
    level: float,
    conformal: ConformalIntervals | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
    """Lower and upper ends (R,) and the kind of each interval.

    Conformal where the factors are there and finite; else the estimator's own, as it is.
    """
    half = np.full(len(known), float(norm.ppf(0.5 + level / 2)))
    kinds = [estimator.interval_kind] * len(known)
    if conformal is not None:
        factor = _factors(conformal, result, known, level)
        half = np.where(np.isfinite(factor), factor, half)
        kinds = ["conformal" if finite else estimator.interval_kind for finite in np.isfinite(factor)]
    reach = half * result.std
    return np.clip(result.mean - reach, 0, 1), np.clip(result.mean + reach, 0, 1), kinds


def _factors(
    conformal: ConformalIntervals, result: ScoreEstimate, known: NDArray[np.intp], level: float
) -> NDArray[np.float64]:
    try:
        return conformal.factor(result.mean, known.astype(np.float64), level)
    except BadInputError:  # a level that was not calibrated
        return np.full(len(known), np.inf)
