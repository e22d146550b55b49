"""Two-way balanced sampling: every row, and every prompt, is evaluated equally often."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from policies._base import Policy, PolicyState, Selection

__all__ = ["BalancedPolicy"]

NEVER = np.iinfo(np.int32).max


class BalancedPolicy(Policy):
    """Two-way balanced sampling (Maia Polo et al. 2024, algorithm 2).

    Among the rows with the fewest evaluations one is drawn; among its open prompts one of those with the
    fewest evaluations over all rows. Pending cells count as evaluations.
    """

    name: ClassVar[str] = "balanced"
    uses_total: ClassVar[bool] = False

    def _select(self, state: PolicyState, n: int) -> Selection:
        open_ = state.candidates
        taken = ~np.isnan(state.scores) | state.pending
        by_row = np.where(open_.any(axis=1), taken.sum(axis=1), NEVER)
        by_column = taken.sum(axis=0).astype(np.int32)
        left = open_.sum(axis=1)
        rows, columns, probability = [], [], []
        for _ in range(min(n, int(left.sum()))):
            tied = np.flatnonzero(by_row == by_row.min())
            row = int(tied[state.rng.integers(len(tied))])
            counts = np.where(open_[row], by_column, NEVER)
            fewest = np.flatnonzero(counts == counts.min())
            column = int(fewest[state.rng.integers(len(fewest))])
            open_[row, column] = False
            left[row] -= 1
            by_row[row] = by_row[row] + 1 if left[row] else NEVER
            by_column[column] += 1
            rows.append(row)
            columns.append(column)
            probability.append(1.0 / (len(tied) * len(fewest)))
        return Selection.of(rows, columns, probability=probability)
