"""The one path from what a study knows to what a policy sees: shared by live studies and the backtest.

Both the agent and `assay backtest` build the policy's state here and nowhere else, so that a study replayed
live acquires the same cells as its row in a backtest. Pure functions of arrays: no database, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.matrix import BoolArray, FloatArray
from estimators import Estimator, prompts_without_history
from policies import PolicyState

__all__ = ["batch_size", "build_state", "step_generator"]


def step_generator(seed: int, asked: int, methods: Sequence[str] = ()) -> np.random.Generator:
    """The generator of one acquisition step.

    It depends only on what is stored (the study's seed, how many cells were asked for so far, which methods
    the study is about), never on how often the agent was restarted. Different methods draw differently under
    the same seed, so that a random policy does not buy the same prompts for every model.

    Args:
        seed: The study's seed, >= 0.
        asked: Cells asked for so far, answered or pending.
        methods: Names of the study's methods, in row order; none leaves `default_rng([seed, asked])`.
    """
    if not methods:
        return np.random.default_rng([seed, asked])
    digest = hashlib.sha256("\n".join(methods).encode()).digest()
    return np.random.default_rng([seed, asked, int.from_bytes(digest[:8], "little")])


def build_state(
    scores: FloatArray,
    *,
    seed: int,
    methods: Sequence[str],
    weights: FloatArray,
    dataset_index: NDArray[np.intp],
    estimator: Estimator | None,
    total: int = 0,
    pending: BoolArray | None = None,
    available: BoolArray | None = None,
    cost: FloatArray | None = None,
    embeddings: FloatArray | None = None,
    row_features: FloatArray | None = None,
) -> PolicyState:
    """What a policy may look at, for a study of R methods on N prompts.

    Args:
        scores: (R, N), or (N,) for one method: scores known, NaN = unknown.
        seed: The study's seed; the step's generator follows from it, the cells asked so far and the methods.
        methods: R method names.
        weights: (N,) prompt weights, summing to 1.
        dataset_index: (N,) dataset of each prompt.
        estimator: The fitted estimator, or None.
        total: Cells the study means to acquire in all (its budget in cells); 0 = not known.
        pending: Cells asked for and not answered, shaped like `scores`; default none.
        available: Cells that can be bought; default all.
        cost: Expected cost of each cell, > 0, broadcast to (R, N); default 1 each.
        embeddings: (N, d) prompt vectors, or None.
        row_features: (R, p) covariates of the rows' templates, or None.
    """
    known = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    waiting = _mask(pending, known.shape, default=False)
    asked = int((~np.isnan(known) | waiting).sum())
    prices = np.ones(known.shape) if cost is None else np.broadcast_to(cost, known.shape)
    return PolicyState(
        scores=known,
        pending=waiting,
        available=_mask(available, known.shape, default=True),
        cost=prices.astype(np.float64),
        weights=np.asarray(weights, dtype=np.float64),
        dataset_index=np.asarray(dataset_index, dtype=np.intp),
        estimator=estimator,
        rng=step_generator(seed, asked, methods),
        total=total,
        embeddings=None if embeddings is None else np.asarray(embeddings, dtype=np.float32),
        row_features=None if row_features is None else np.asarray(row_features, dtype=np.float64),
        cold=None if estimator is None else prompts_without_history(estimator),
    )


def batch_size(asked: int, total: int, batch: int) -> int:
    """How many cells the next step asks for: a full batch, or what the budget of `total` cells leaves."""
    return max(0, min(batch, total - asked))


def _mask(given: BoolArray | None, shape: tuple[int, ...], *, default: bool) -> BoolArray:
    if given is None:
        return np.full(shape, default)
    return np.broadcast_to(np.asarray(given, dtype=bool), shape).copy()
