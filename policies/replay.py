"""Acquiring cells of one study over many rows whose scores are all known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from estimators import Estimator
from policies import Policy
from policies.acquisition import build_state

__all__ = ["replay_cells"]


def replay_cells(
    test: ScoreMatrix,
    policy: Policy,
    estimator: Estimator,
    budgets: Sequence[int],
    *,
    batch: int,
    seed: int,
) -> Iterator[NDArray[np.float64]]:
    """Acquire cells of one study over all rows; yields the (R, N) observed scores at each budget (ascending).

    A policy that looks at the total gets a run per budget, as `replay` gives it.
    """
    runs = [[budget] for budget in budgets] if policy.uses_total else [list(budgets)]
    for wanted in runs:
        observed, asked = np.full(test.values.shape, np.nan), 0
        for budget in wanted:
            while asked < budget:
                state = build_state(
                    observed,
                    seed=seed,
                    methods=test.method_ids,
                    weights=test.weights,
                    dataset_index=test.dataset_index,
                    estimator=estimator,
                    total=max(wanted),
                    available=test.observed,
                    embeddings=test.embeddings,
                )
                chosen = policy.select(state, min(batch, budget - asked))
                if len(chosen) == 0:
                    break
                observed[chosen.rows, chosen.columns] = test.values[chosen.rows, chosen.columns]
                asked += len(chosen)
            yield observed.copy()
