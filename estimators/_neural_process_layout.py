"""What the neural process is told of each prompt: its features, score type and levels, keyed by identity.

Everything here survives a warm start: columns and datasets are matched by a hash of their ids, and features
keep the basis and the scale of the first fit, so that the network's weights stay meaningful.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix, ScoreType
from estimators._neural_process_factors import Factors, fit_factors

__all__ = ["Layout", "PromptFeatures", "TOKENS", "id_hashes", "score_kinds"]

Array = NDArray[np.float64]

TEXT_SIZE = 16
MOST_LEVELS = 21
# Embedding table of discrete scores: 0 and 1 for binary ones, then a grid of 21 steps for categories.
TOKENS = 2 + MOST_LEVELS
PromptFeatures = Literal["all", "score", "text"]


@dataclass(frozen=True)
class Layout:
    """Prompts as the network sees them.

    Attributes:
        prompt_keys: (N,) hash of each prompt's id.
        dataset_keys: (D,) hash of each dataset's name; later fits only append.
        factors: (N, L + 1) item parameters to start the factor path from (loadings, intercept).
        features: (N, F) scaled features.
        shift, scale: (L + 2 + TEXT_SIZE,) standardisation of all features but the datasets.
        text_mean, text_axes: centre (d,) and principal axes (d, TEXT_SIZE) of the prompt embeddings.
    """

    prompt_keys: NDArray[np.int64]
    dataset_keys: NDArray[np.int64]
    factors: Array
    features: Array
    shift: Array
    scale: Array
    text_mean: Array
    text_axes: Array

    @classmethod
    def build(
        cls,
        history: ScoreMatrix,
        rank: int,
        use: PromptFeatures,
        previous: Self | None = None,
        sweeps: int = 40,
    ) -> Self:
        """Lay out the prompts of a history, in the previous layout's terms where there is one."""
        keys, datasets = id_hashes(history.prompt_ids), id_hashes(history.datasets)
        mean, axes = _text_axes(history) if previous is None else (previous.text_mean, previous.text_axes)
        text = _project(history, mean, axes)
        known: NDArray[np.bool_] = np.asarray(history.observed.any(axis=0))
        start = None if previous is None else previous._start(keys)
        fitted = fit_factors(history.values, rank, sweeps=sweeps if start is None else 2, start=start)
        factors = _place_unknown(fitted, known, text, history)
        if previous is not None:
            datasets = np.concatenate([previous.dataset_keys, np.setdiff1d(datasets, previous.dataset_keys)])
        raw: Array = np.column_stack([factors, known, text]).astype(np.float64)
        if use == "text":
            raw[:, : rank + 2] = 0.0
        elif use == "score":
            raw[:, rank + 2 :] = 0.0
        shift, scale = _scaling(raw) if previous is None else (previous.shift, previous.scale)
        order = {int(key): i for i, key in enumerate(datasets)}
        position = np.array([order[int(key)] for key in id_hashes(history.datasets)])[history.dataset_index]
        features = np.column_stack([(raw - shift) / scale, np.eye(len(datasets))[position]])
        return cls(keys, datasets, factors, features, shift, scale, mean, axes)

    def _start(self, keys: NDArray[np.int64]) -> Factors:
        """Item parameters of known columns; zero loadings for new ones, which then do not move the rows."""
        rank = self.factors.shape[1] - 1
        start = np.zeros((len(keys), rank + 1))
        here, there = self.shared(keys)
        start[here] = self.factors[there]
        return Factors(start[:, :rank], start[:, rank])

    def shared(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Positions in `keys`, and here, of the prompts that both know."""
        position = {int(key): i for i, key in enumerate(self.prompt_keys)}
        pairs = [(i, position[int(key)]) for i, key in enumerate(keys) if int(key) in position]
        both = np.array(pairs, dtype=np.intp).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For saving, each under `layout.`."""
        return {f"layout.{key}": value for key, value in vars(self).items()}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Undo `arrays`."""
        return cls(
            **{key.removeprefix("layout."): value for key, value in arrays.items() if "layout." in key}
        )


def score_kinds(history: ScoreMatrix) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Array]]:
    """Type (N,) of each prompt (0 binary, 1 real, 2 categorical), its group (N,) and each group's levels.

    Groups are the datasets. A categorical dataset with more levels than the table holds counts as real.
    """
    kinds = np.zeros(len(history.datasets), dtype=np.int64)
    levels: list[Array] = []
    for i, kind in enumerate(history.score_types):
        values = history.values[:, history.dataset_index == i]
        found = np.unique(values[~np.isnan(values)]).astype(np.float64)
        categorical = kind is ScoreType.CATEGORICAL and len(found) <= MOST_LEVELS
        kinds[i] = 0 if kind is ScoreType.BINARY else 2 if categorical else 1
        levels.append(found if categorical and len(found) else np.array([0.0, 1.0]))
    return kinds[history.dataset_index], history.dataset_index.astype(np.int64), levels


def id_hashes(names: Sequence[str]) -> NDArray[np.int64]:
    """(n,) 64 bits of the SHA-256 of each id."""
    digests = [hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8] for name in names]
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def _text_axes(history: ScoreMatrix) -> tuple[Array, Array]:
    """Centre and principal axes of the embeddings; zeros where there are none."""
    if history.embeddings is None:
        return np.zeros(1), np.zeros((1, TEXT_SIZE))
    vectors = history.embeddings.astype(np.float64)
    mean = vectors.mean(axis=0)
    _, _, right = np.linalg.svd(vectors - mean, full_matrices=False)
    axes = np.zeros((vectors.shape[1], TEXT_SIZE))
    kept = right[:TEXT_SIZE]
    signs = np.where(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)] < 0, -1.0, 1.0)
    axes[:, : len(kept)] = (kept * signs[:, None]).T
    return mean, axes


def _project(history: ScoreMatrix, mean: Array, axes: Array) -> Array:
    """(N, TEXT_SIZE); zeros where there are no embeddings, or ones of another encoder."""
    if history.embeddings is None or history.embeddings.shape[1] != len(mean):
        return np.zeros((history.n_prompts, TEXT_SIZE))
    return (history.embeddings.astype(np.float64) - mean) @ axes


def _place_unknown(fitted: Factors, known: NDArray[np.bool_], text: Array, history: ScoreMatrix) -> Array:
    """(N, L + 1) item parameters; those of prompts without scores are predicted from dataset and text."""
    items = np.column_stack([fitted.loadings, fitted.intercepts])
    if known.all() or not known.any():
        return items
    onehot = np.eye(len(history.datasets))[history.dataset_index]
    spread = max(float(text[known].std()), 1e-9)
    inputs = np.column_stack([onehot, text / spread / TEXT_SIZE])
    centre = items[known].mean(axis=0)
    gram = inputs[known].T @ inputs[known] + 5.0 * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs[known].T @ (items[known] - centre))
    items[~known] = centre + inputs[~known] @ weights
    return items


def _scaling(raw: Array) -> tuple[Array, Array]:
    spread = raw.std(axis=0)
    return raw.mean(axis=0), np.where(spread > 1e-6, spread, 1.0)
