"""Uncertainty sampling (Li et al., Active Evaluation Acquisition, equation 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from policies._base import Policy, PolicyState, Selection

__all__ = ["UncertaintyPolicy"]

CHUNK_BYTES = 2**26


class UncertaintyPolicy(Policy):
    """Chooses the cells whose scores the estimator predicts with the largest variance, per unit of cost.

    For binary scores the order is that of the predictive entropy. A batch takes the best n at once.
    """

    name: ClassVar[str] = "uncertainty"
    needs_estimator: ClassVar[bool] = True
    design: ClassVar[str] = "variance-reduction"
    uses_total: ClassVar[bool] = False

    def _select(self, state: PolicyState, n: int) -> Selection:
        assert state.estimator is not None
        return _most_uncertain(state.estimator.predict(state.scores).variance, state, n)

    def select_each(self, states: Sequence[PolicyState], n: int) -> list[Selection]:
        """See `Policy.select_each`: one prediction for many rows."""
        together = [
            i for i, s in enumerate(states) if s.estimator is states[0].estimator and s.candidates.any()
        ]
        if n < 1 or not together or states[0].estimator is None:
            return [self.select(state, n) for state in states]
        chosen = {}
        for start in range(0, len(together), step := _states_at_once(states[0])):
            group = together[start : start + step]
            scores = np.concatenate([states[i].scores for i in group])
            variance = states[0].estimator.predict(scores).variance
            ends = np.cumsum([len(states[i].scores) for i in group])
            for part, i in zip(np.split(variance, ends[:-1]), group, strict=True):
                chosen[i] = _most_uncertain(part, states[i], n)
        return [chosen[i] if i in chosen else self.select(s, n) for i, s in enumerate(states)]


def _states_at_once(state: PolicyState) -> int:
    return max(1, CHUNK_BYTES // (8 * 16 * state.scores.size))


def _most_uncertain(variance: NDArray[np.float64], state: PolicyState, n: int) -> Selection:
    value = np.where(state.candidates, variance / state.cost, -1.0).reshape(-1)
    best = np.lexsort((np.arange(len(value)), -value.round(12)))[: min(n, int(state.candidates.sum()))]
    rows, columns = np.divmod(best, state.scores.shape[1])
    return Selection.of(rows, columns, gain=variance[rows, columns])
