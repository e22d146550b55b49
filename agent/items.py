"""How hard each prompt is and how well it tells good models from bad ones, by classical test theory.

Difficulty is the share of lost score; discrimination the item-rest correlation (Lord and Novick, Statistical
Theories of Mental Test Scores, 1968): the correlation of a prompt's score with the mean of the same method's
other scores. A prompt that better models fail (negative discrimination) often has a wrong reference answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.matrix import FloatArray

__all__ = ["LEAST_METHODS", "ItemStatistics", "item_statistics"]

LEAST_METHODS = 5  # scores of a prompt below which a correlation says nothing
CHUNK = 1024  # prompts at once


@dataclass(frozen=True)
class ItemStatistics:
    """Statistics of N prompts.

    Attributes:
        counts: (N,) methods with a score.
        difficulty: (N,) 1 - mean score; NaN without scores.
        discrimination: (N,) item-rest correlation in [-1, 1]; NaN below `LEAST_METHODS` scores, or where all
            methods score the same.
    """

    counts: NDArray[np.int64]
    difficulty: NDArray[np.float64]
    discrimination: NDArray[np.float64]


def item_statistics(values: FloatArray) -> ItemStatistics:
    """Statistics of the columns of an (M, N) score matrix; NaN = missing."""
    parts = [slice(start, start + CHUNK) for start in range(0, values.shape[1], CHUNK)]
    total = np.asarray(np.nansum(values, axis=1, dtype=np.float64), dtype=np.float64)
    known = np.zeros(len(values), dtype=np.int64)
    for part in parts:
        known += (~np.isnan(values[:, part])).sum(axis=1)
    found = [_block(values[:, part].astype(np.float64), total, known) for part in parts]
    return ItemStatistics(
        counts=np.concatenate([np.zeros(0, dtype=np.int64), *(block[0] for block in found)]),
        difficulty=np.concatenate([np.zeros(0), *(block[1] for block in found)]),
        discrimination=np.concatenate([np.zeros(0), *(block[2] for block in found)]),
    )


def _block(
    block: NDArray[np.float64], total: NDArray[np.float64], known: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    there = ~np.isnan(block) & (known > 1)[:, None]
    score = np.where(there, block, 0.0)
    rest = np.where(there, (total[:, None] - score) / np.maximum(known - 1, 1)[:, None], 0.0)
    n = there.sum(axis=0)
    counts = (~np.isnan(block)).sum(axis=0)
    difficulty = 1.0 - np.where(counts, np.nansum(block, axis=0) / np.maximum(counts, 1), np.nan)
    m = np.maximum(n, 1)
    dx, dy = (
        np.where(there, score - score.sum(axis=0) / m, 0.0),
        np.where(there, rest - rest.sum(axis=0) / m, 0.0),
    )
    spread = np.sqrt((dx**2).sum(axis=0) * (dy**2).sum(axis=0))
    useful = (n >= LEAST_METHODS) & (spread > 1e-12)
    correlation = np.where(useful, (dx * dy).sum(axis=0) / np.where(useful, spread, 1.0), np.nan)
    return counts, difficulty, np.clip(correlation, -1.0, 1.0)
