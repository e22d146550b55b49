"""Small synthetic score matrices with a planted structure, for the tests of estimators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix

KINDS = ("binary", "real", "mixed")


def planted(
    kind: str = "binary", *, rows: int = 80, prompts: int = 30, missing: float = 0.1, seed: int = 0
) -> ScoreMatrix:
    """A matrix of rank 2 on the logistic scale: two datasets of unequal weight, some entries missing."""
    rng = np.random.default_rng(seed)
    ability = rng.standard_normal((rows, 2)) * np.array([1.6, 0.8])
    loadings = np.column_stack([rng.uniform(0.8, 1.6, prompts), rng.standard_normal(prompts)])
    level = 1.0 / (1.0 + np.exp(-(ability @ loadings.T + rng.standard_normal(prompts) * 0.8)))
    binary = (rng.random((rows, prompts)) < level).astype(np.float64)
    real = np.clip(level + 0.08 * rng.standard_normal((rows, prompts)), 0.0, 1.0)
    half = np.arange(prompts) < prompts // 2
    values = {"binary": binary, "real": real, "mixed": np.where(half, binary, real)}[kind]
    values[rng.random((rows, prompts)) < missing] = np.nan
    raw = np.where(half, 2.0, 1.0) * rng.uniform(0.5, 1.5, prompts)
    return ScoreMatrix.build(
        values,
        prompt_datasets=["first" if first else "second" for first in half],
        weights=raw / raw.sum(),
        embeddings=np.column_stack([loadings, rng.standard_normal((prompts, 4))]),
    )


def partly(values: NDArray[np.floating], count: int, seed: int = 0) -> NDArray[np.float64]:
    """The same rows with at most `count` random scores each; the rest is NaN."""
    rng = np.random.default_rng(seed)
    rank = np.where(np.isnan(values), 2.0, rng.random(values.shape)).argsort(axis=1).argsort(axis=1)
    return np.where(rank < count, values, np.nan).astype(np.float64)
