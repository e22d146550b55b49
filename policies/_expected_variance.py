"""Expected variance reduction: adaptive, cost-aware, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from estimators import Linearization, SupportsLinearization
from policies._base import Policy, PolicyState, Selection
from policies._variance_reduction import RowDesign, first_best

__all__ = ["ExpectedVarianceReductionPolicy"]

CHUNK_BYTES = 2**27  # of one linearisation's loadings


class ExpectedVarianceReductionPolicy(Policy):
    """The agent's default where its estimator allows it.

    Chooses the cell whose answer is expected to lower the benchmark score's variance most per cost.

    The variance is the estimator's own, linearised at what was answered so far (`_variance_reduction`); for
    logistic estimators this is expected variance reduction with the Bernoulli noise p (1 - p). A batch is
    chosen one by one, each as if those before it were answered at their means. With several rows the rows'
    variances add up.
    """

    name: ClassVar[str] = "expected-variance-reduction"
    needs_estimator: ClassVar[bool] = True
    uses_total: ClassVar[bool] = False

    def _select(self, state: PolicyState, n: int) -> Selection:
        return _greedy(_linearize(state, state.scores), state, n)

    def select_each(self, states: Sequence[PolicyState], n: int) -> list[Selection]:
        """See `Policy.select_each`: one linearisation for many rows."""
        alone = [n < 1 or _is_alone(state, states) for state in states]
        chosen = {i: self.select(states[i], n) for i in np.flatnonzero(alone)}
        rest = [i for i in range(len(states)) if i not in chosen]
        for start in range(0, len(rest), step := _rows_at_once(states)):
            group = rest[start : start + step]
            scores = np.concatenate([states[i].scores for i in group])
            lines = _linearize(states[group[0]], scores)
            for place, i in enumerate(group):
                chosen[i] = _greedy(_row(lines, place), states[i], n)
        return [chosen[i] for i in range(len(states))]


def _is_alone(state: PolicyState, states: Sequence[PolicyState]) -> bool:
    """Whether a state cannot share a linearisation: nothing to choose, several rows, another estimator."""
    shared = state.estimator is states[0].estimator and state.estimator is not None
    return not shared or len(state.scores) != 1 or not state.candidates.any()


def _rows_at_once(states: Sequence[PolicyState]) -> int:
    wide = states[0].scores.shape[1] if states else 1
    return max(1, CHUNK_BYTES // (8 * 16 * wide))


def _linearize(state: PolicyState, scores: NDArray[np.float64]) -> Linearization:
    estimator = state.estimator
    if not isinstance(estimator, SupportsLinearization):
        named = "none" if estimator is None else f"'{estimator.name}'"
        raise BadInputError(
            f"policy 'expected-variance-reduction' needs an estimator that can be linearised, not {named}",
            "use linear-gaussian, mirt or corrected:mirt, or another policy",
        )
    return estimator.linearize(scores)


def _row(lines: Linearization, i: int) -> Linearization:
    loadings = lines.loadings if lines.loadings.ndim == 2 else lines.loadings[i : i + 1]
    part = slice(i, i + 1)
    return Linearization(lines.mean[part], loadings, lines.covariance[part], lines.noise[part])


def _designs(lines: Linearization, state: PolicyState) -> list[RowDesign]:
    """What is unknown of each row of the state, pending cells counted as answered."""
    designs = []
    for i, scores in enumerate(state.scores):
        design = RowDesign(
            loadings=lines.loadings if lines.loadings.ndim == 2 else lines.loadings[i],
            covariance=lines.covariance[i],
            noise=np.maximum(lines.noise[i], 1e-9),
            weights=np.where(np.isnan(scores), state.weights, 0.0),
        )
        design.take_all(state.pending[i] & np.isnan(scores))
        designs.append(design)
    return designs


def _greedy(lines: Linearization, state: PolicyState, n: int) -> Selection:
    designs, free = _designs(lines, state), state.candidates
    value = np.array([_value(d, free[i], state.cost[i]) for i, d in enumerate(designs)])  # (R, N)
    rows, columns, gains = [], [], []
    for left in range(min(n, int(free.sum())), 0, -1):
        i, j = divmod(first_best(value.reshape(-1)), value.shape[1])
        rows.append(i)
        columns.append(j)
        gains.append(value[i, j] * state.cost[i, j])
        free[i, j] = False
        if left > 1:
            designs[i].take(j)
            value[i] = _value(designs[i], free[i], state.cost[i])
    return Selection.of(rows, columns, gain=gains)


def _value(design: RowDesign, free: NDArray[np.bool_], cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) variance reduction per cost; -1 where the prompt cannot be chosen."""
    return np.where(free, design.gains() / cost, -1.0)
