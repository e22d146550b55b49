"""Conformal intervals of an estimator version: learned from rows it has not seen, kept in its artifact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import Estimator, SupportsLinearization
from estimators.intervals import ConformalIntervals, calibrate, cross_fit, rehearse

__all__ = ["DESIGNS", "INTERVALS_FILE", "learn_intervals", "load_intervals", "save_intervals"]

INTERVALS_FILE = "intervals.json"

#: How prompts may come to be acquired: drawn at random, or chosen to narrow the interval.
DESIGNS = ("random", "variance-reduction")

COUNTS = (5, 10, 25, 50, 100, 200, 400)

#: With fewer rows than this the quantiles of the usual levels do not exist.
LEAST_ROWS = 40

Intervals = dict[str, ConformalIntervals]


def learn_intervals(estimator: Estimator, learned: ScoreMatrix, held_out: ScoreMatrix) -> Intervals:
    """Factors per design, from rows estimated by fits without them; none where there are too few.

    Cheap estimators are refitted on parts of the history (cross-fitting), so that every row counts; dear ones
    are rehearsed on the rows that were held out of their fit.

    Args:
        estimator: The fitted version.
        learned: (M, N) the rows that it learned from.
        held_out: (H, N) the rows that it did not learn from.
    """
    if estimator.joint:
        return {}  # a row's error depends on which other rows it is asked about with
    refit = estimator.affordable_to_refit()
    rows = _complete(learned if refit else held_out)
    if rows.n_methods < LEAST_ROWS:
        return {}
    counts = [count for count in COUNTS if count < rows.n_prompts]
    designs = DESIGNS if isinstance(estimator, SupportsLinearization) else DESIGNS[:1]

    return {
        design: calibrate(
            cross_fit(estimator.settled, rows, counts, design=design)
            if refit
            else rehearse(estimator, rows, counts, design=design)
        )
        for design in designs
    }


def _complete(rows: ScoreMatrix) -> ScoreMatrix:
    return rows.rows(np.flatnonzero(rows.observed.all(axis=1)))


def save_intervals(intervals: Intervals, folder: Path) -> None:
    """Write them into an artifact's folder."""
    content = {design: factors.to_json() for design, factors in intervals.items()}
    (folder / INTERVALS_FILE).write_text(json.dumps(content), encoding="utf-8")


def load_intervals(folder: Path) -> Intervals:
    """Read them back; empty where the version has none."""
    path = folder / INTERVALS_FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {design: ConformalIntervals.from_json(factors) for design, factors in content.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{path} cannot be read: {error}", "retrain the estimator") from None
