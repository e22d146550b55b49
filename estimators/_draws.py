"""Random scores in [0, 1] around given expectations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.matrix import BoolArray, FloatArray, ScoreMatrix, ScoreType

__all__ = ["binary_prompts", "draw_scores"]


def binary_prompts(history: ScoreMatrix) -> BoolArray:
    """(N,) True where the prompt's scores are 0 or 1."""
    kinds: BoolArray = np.array([kind is ScoreType.BINARY for kind in history.score_types])
    return kinds[history.dataset_index]


def draw_scores(
    level: FloatArray, variance: FloatArray, binary: BoolArray, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Scores with expectation `level`: Bernoulli where binary, Beta with the given variance elsewhere.

    Args:
        level: (..., N) expected scores; clipped to [0, 1].
        variance: broadcastable to `level`; at most level (1 - level) is used.
        binary: (N,) True where scores are 0 or 1.
        rng: Source of randomness.

    Returns:
        (..., N) scores in [0, 1].
    """
    level = np.clip(level, 0.0, 1.0)
    draws = (rng.random(level.shape) < level).astype(np.float64)
    if binary.all():
        return draws
    inner = np.clip(level[..., ~binary], 1e-4, 1.0 - 1e-4)
    spread = np.broadcast_to(variance, level.shape)[..., ~binary]
    share = np.clip(spread / (inner * (1.0 - inner)), 1e-4, 0.98)
    concentration = 1.0 / share - 1.0
    draws[..., ~binary] = rng.beta(inner * concentration, (1.0 - inner) * concentration)
    return draws
