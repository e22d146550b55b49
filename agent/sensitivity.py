"""How much a comparison hangs on the template: spread of scores, changed rankings, Kendall's W.

Rows are templates: of the prompts, or of the judge that scores the answers (one benchmark per judge
template).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from assay.errors import BadInputError
from assay.matrix import FloatArray

__all__ = ["Sensitivity", "changed_rankings", "kendalls_w", "sensitivity"]


@dataclass(frozen=True)
class Sensitivity:
    """What T templates do to the scores of M models.

    Attributes:
        models: M names.
        templates: T names.
        low: (M,) lowest score of each model over the templates.
        median: (M,) median.
        high: (M,) highest score.
        changed: Share of the templates in which the models' ranking is not that by their mean scores.
        agreement: Kendall's W of the models ranking the templates: 1 = the same templates are best for all,
            0 = each has its own; None where there are fewer than two of either.
    """

    models: tuple[str, ...]
    templates: tuple[str, ...]
    low: NDArray[np.float64]
    median: NDArray[np.float64]
    high: NDArray[np.float64]
    changed: float
    agreement: float | None

    @property
    def spread(self) -> NDArray[np.float64]:
        """(M,) highest less lowest score."""
        return self.high - self.low


def sensitivity(scores: FloatArray, models: Sequence[str], templates: Sequence[str]) -> Sensitivity:
    """Judge a (T, M) table of scores; templates that lack a model's score are left out.

    Raises:
        BadInputError: The table has another shape, or fewer than two templates have all scores.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.shape != (len(templates), len(models)):
        raise BadInputError(
            f"scores are {table.shape}, for {len(templates)} templates and {len(models)} models"
        )
    complete = np.asarray(~np.isnan(table).any(axis=1))
    if complete.sum() < 2 or not models:
        raise BadInputError(
            "fewer than two templates have a score of every model",
            "run a study of each model over the same templates",
        )
    table = table[complete]
    return Sensitivity(
        models=tuple(models),
        templates=tuple(name for name, whole in zip(templates, complete, strict=True) if whole),
        low=table.min(axis=0),
        median=np.median(table, axis=0),
        high=table.max(axis=0),
        changed=changed_rankings(table),
        agreement=kendalls_w(table.T) if len(models) > 1 else None,
    )


def changed_rankings(scores: FloatArray) -> float:
    """Share of T templates whose ranking of M models (T, M) differs from that by the mean over the
    templates.
    """
    table = np.asarray(scores, dtype=np.float64)
    usual = rankdata(-table.mean(axis=0), method="min")
    ranks = rankdata(-table, method="min", axis=1)
    return float((ranks != usual).any(axis=1).mean())


def kendalls_w(scores: FloatArray) -> float:
    """Kendall's W of m rankers' scores of n objects (m, n): W = 12 S / (m^2 (n^3 - n)), 0 to 1.

    S is the sum of squared deviations of the objects' rank sums from their mean (Kendall and Smith, 1939).
    Equal scores share their mean rank; the denominator is corrected for them, so that rankers who agree on
    ties too reach 1. Rankers to whom all objects are alike are left out (0 where no others are left).
    """
    table = np.asarray(scores, dtype=np.float64)
    table = table[np.ptp(table, axis=1) > 0] if len(table) else table
    if table.ndim != 2 or table.shape[1] < 2:
        raise BadInputError("Kendall's W needs rankers x objects, at least two objects")
    m, n = table.shape
    if m == 0:
        return 0.0
    ranks = rankdata(table, axis=1)
    squares = float(((ranks.sum(axis=0) - m * (n + 1) / 2.0) ** 2).sum())
    return float(12.0 * squares / (m**2 * (n**3 - n) - m * _ties(ranks)))


def _ties(ranks: NDArray[np.float64]) -> float:
    """Sum over rankers and groups of equal ranks of t^3 - t."""
    total = 0.0
    for row in ranks:
        _, counts = np.unique(row, return_counts=True)
        total += float((counts.astype(np.float64) ** 3 - counts).sum())
    return total
