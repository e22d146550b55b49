"""Splits and masks for cross-validation on the history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["hide_at_random", "keep_at_random", "known_scores", "row_folds"]

MANY_ROWS = 200  # from here on, one held-out fifth says enough


def row_folds(
    n_rows: int, seed: int, *, folds: int = 5, every: bool = False
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs of (train, test) row indices, shuffled; only the first fold where there are many rows.

    Args:
        n_rows: Number of rows, at least 2.
        seed: Seed of the shuffle.
        folds: Number of folds (fewer where there are fewer rows).
        every: Give all folds, however many rows there are.
    """
    order = np.random.default_rng(seed).permutation(n_rows)
    parts = np.array_split(order, min(folds, n_rows))
    pairs = [
        (np.sort(np.concatenate(parts[:i] + parts[i + 1 :])), np.sort(part)) for i, part in enumerate(parts)
    ]
    return pairs if every or n_rows < MANY_ROWS else pairs[:1]


def keep_at_random(values: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(B, N) the same scores with at most `count` of each row kept, drawn uniformly; the rest is NaN."""
    order = np.where(np.isnan(values), 2.0, rng.random(values.shape))
    rank = order.argsort(axis=1).argsort(axis=1)
    return np.where(rank < count, values, np.nan)


def hide_at_random(values: NDArray[np.float64], share: float, seed: int) -> NDArray[np.float64]:
    """(B, N) the same scores with a random `share` of the prompts kept (at least one)."""
    count = max(1, round(share * values.shape[1]))
    return keep_at_random(values, count, np.random.default_rng(seed))


def known_scores(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B,) benchmark score over the prompts that have a score, weights rescaled to sum to 1."""
    share = np.where(np.isnan(values), 0.0, weights)
    total = share.sum(axis=1)
    scores: NDArray[np.float64] = (np.nan_to_num(values) * share).sum(axis=1) / np.maximum(total, 1e-12)
    return scores
