"""The score matrix: what storage loads, estimators learn from and policies choose in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError

__all__ = [
    "FloatArray",
    "IntArray",
    "BoolArray",
    "ScoreMatrix",
    "ScoreType",
    "dataset_weights",
    "prompt_weights",
]

FloatArray = NDArray[np.floating]
IntArray = NDArray[np.integer]
BoolArray = NDArray[np.bool_]


class ScoreType(StrEnum):
    """What values the scores of a dataset take; all lie in [0, 1]."""

    BINARY = "binary"
    REAL = "real"
    CATEGORICAL = "categorical"  # a few fixed levels in [0, 1]


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of M methods on N prompts of one benchmark.

    Attributes:
        values: (M, N) float32 scores in [0, 1]; NaN = missing.
        method_ids: M identifiers, in row order.
        prompt_ids: N identifiers, in column order.
        datasets: D dataset names.
        dataset_index: (N,) index into `datasets` of each prompt.
        weights: (N,) weight of each prompt, summing to 1: benchmark score = values @ weights.
        score_types: D score types, one per dataset.
        embeddings: (N, d) prompt vectors, or None.
    """

    values: NDArray[np.float32]
    method_ids: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    datasets: tuple[str, ...]
    dataset_index: NDArray[np.intp]
    weights: NDArray[np.float64]
    score_types: tuple[ScoreType, ...]
    embeddings: NDArray[np.float32] | None = None

    @classmethod
    def build(
        cls,
        values: FloatArray,
        *,
        method_ids: Sequence[str] | None = None,
        prompt_ids: Sequence[str] | None = None,
        prompt_datasets: Sequence[str] | None = None,
        weights: FloatArray | None = None,
        score_types: dict[str, ScoreType] | None = None,
        embeddings: FloatArray | None = None,
    ) -> ScoreMatrix:
        """Build and check a matrix from an array and names, filling in what is left out.

        Weights default to equal datasets with equal prompts inside each; score types default to binary where
        a dataset's scores are all 0 or 1, else real.

        Raises:
            BadInputError: Shapes disagree, a score is infinite or outside [0, 1], or weights do not sum to 1.
        """
        values = np.asarray(values, dtype=np.float32)
        if values.ndim != 2:
            raise BadInputError(f"scores must be a methods x prompts matrix, got shape {values.shape}")
        m, n = values.shape
        names = list(prompt_datasets) if prompt_datasets is not None else ["all"] * n
        datasets = tuple(dict.fromkeys(names))
        position = {name: i for i, name in enumerate(datasets)}
        index = np.array([position[name] for name in names], dtype=np.intp)
        kinds = _score_types(values, index, datasets) if score_types is None else score_types
        matrix = cls(
            values=values,
            method_ids=tuple(method_ids)
            if method_ids is not None
            else tuple(f"method-{i}" for i in range(m)),
            prompt_ids=tuple(prompt_ids)
            if prompt_ids is not None
            else tuple(f"prompt-{j}" for j in range(n)),
            datasets=datasets,
            dataset_index=index,
            weights=prompt_weights(index) if weights is None else np.asarray(weights, dtype=np.float64),
            score_types=tuple(kinds[name] for name in datasets),
            embeddings=None if embeddings is None else np.asarray(embeddings, dtype=np.float32),
        )
        matrix.check()
        return matrix

    @property
    def n_methods(self) -> int:
        """M, the number of rows."""
        return int(self.values.shape[0])

    @property
    def n_prompts(self) -> int:
        """N, the number of columns."""
        return int(self.values.shape[1])

    @property
    def observed(self) -> BoolArray:
        """(M, N) True where a score is present."""
        return ~np.isnan(self.values)

    def benchmark_scores(self) -> NDArray[np.float64]:
        """(M,) benchmark score of each row; NaN where a row has missing scores on weighted prompts."""
        scores: NDArray[np.float64] = self.values.astype(np.float64) @ self.weights
        return scores

    def rows(self, index: IntArray | BoolArray | Sequence[int]) -> ScoreMatrix:
        """The same prompts with only the chosen rows, in the order given."""
        picked = np.arange(self.n_methods)[np.asarray(index)]
        return replace(
            self, values=self.values[picked], method_ids=tuple(self.method_ids[int(i)] for i in picked)
        )

    def columns(self, index: IntArray) -> ScoreMatrix:
        """The same rows with only the chosen prompts; their weights are rescaled to sum to 1."""
        used, place = np.unique(self.dataset_index[index], return_inverse=True)
        return replace(
            self,
            values=self.values[:, index],
            prompt_ids=tuple(self.prompt_ids[int(j)] for j in index),
            datasets=tuple(self.datasets[int(d)] for d in used),
            dataset_index=place.astype(np.intp),
            weights=self.weights[index] / self.weights[index].sum(),
            score_types=tuple(self.score_types[int(d)] for d in used),
            embeddings=None if self.embeddings is None else self.embeddings[index],
        )

    def check(self) -> None:
        """Raise BadInputError where the parts do not fit together."""
        m, n = self.values.shape
        if n == 0:
            raise BadInputError("the score matrix has no prompts", "add prompts to the benchmark first")
        if len(self.method_ids) != m or len(self.prompt_ids) != n:
            raise BadInputError(
                f"scores are {m} x {n}, but there are {len(self.method_ids)} method ids"
                f" and {len(self.prompt_ids)} prompt ids"
            )
        if self.dataset_index.shape != (n,) or self.weights.shape != (n,):
            raise BadInputError(f"dataset index and weights must have {n} entries, one per prompt")
        if np.isinf(self.values).any():
            raise BadInputError("a score is infinite", "use NaN for missing scores")
        with np.errstate(invalid="ignore"):
            outside = (self.values < 0) | (self.values > 1)
        if outside.any():
            i, j = np.argwhere(outside)[0]
            raise BadInputError(
                f"score {self.values[i, j]:g} of method '{self.method_ids[i]}' on prompt"
                f" '{self.prompt_ids[j]}' is outside [0, 1]",
                "rescale the scores to [0, 1]",
            )
        if not np.isclose(self.weights.sum(), 1.0, atol=1e-6) or (self.weights < 0).any():
            raise BadInputError(
                f"prompt weights must be >= 0 and sum to 1, they sum to {self.weights.sum():g}"
            )
        if self.embeddings is not None and self.embeddings.shape[0] != n:
            raise BadInputError(f"{self.embeddings.shape[0]} embeddings for {n} prompts")


def prompt_weights(
    dataset_index: NDArray[np.intp], by_dataset: FloatArray | None = None
) -> NDArray[np.float64]:
    """Weight of each prompt such that a benchmark score is the weighted mean of the datasets' means.

    Args:
        dataset_index: (N,) dataset of each prompt.
        by_dataset: (D,) weight of each dataset; default equal over the datasets that have prompts.

    Returns:
        (N,) weights summing to 1.
    """
    counts = np.bincount(dataset_index, minlength=0 if by_dataset is None else len(by_dataset))
    share = np.ones(len(counts)) if by_dataset is None else np.asarray(by_dataset, dtype=np.float64)
    share = np.where(counts > 0, share, 0.0)
    share = share / share.sum()
    weights: NDArray[np.float64] = (share / np.maximum(counts, 1))[dataset_index]
    return weights


def dataset_weights(matrix: ScoreMatrix) -> NDArray[np.float64]:
    """(D,) total weight of each dataset."""
    weights: NDArray[np.float64] = np.bincount(
        matrix.dataset_index, weights=matrix.weights, minlength=len(matrix.datasets)
    ).astype(np.float64)
    return weights


def _score_types(
    values: NDArray[np.float32], index: NDArray[np.intp], datasets: tuple[str, ...]
) -> dict[str, ScoreType]:
    kinds = {}
    for i, name in enumerate(datasets):
        block = values[:, index == i]
        present = block[~np.isnan(block)]
        binary = bool(np.isin(present, (0.0, 1.0)).all())
        kinds[name] = ScoreType.BINARY if binary else ScoreType.REAL
    return kinds
