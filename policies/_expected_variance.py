"""Expected variance reduction: adaptive, cost-aware, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from estimators import Linearization, SupportsLinearization
from policies._base import Policy, PolicyState, Selection
from policies._row_design import choose_greedily, row_designs

__all__ = ["ExpectedVarianceReductionPolicy"]

CHUNK_BYTES = 2**27  # of one linearisation's loadings


class ExpectedVarianceReductionPolicy(Policy):
    """The agent's default where its estimator allows it.

    Chooses the cell whose answer is expected to lower the benchmark score's variance most per cost.

    The variance is the estimator's own, linearised at what was answered so far (`_row_design`); for
    logistic estimators this is expected variance reduction with the Bernoulli noise p (1 - p). A batch is
    chosen one by one, each as if those before it were answered at their means. With several rows the rows'
    variances add up.
    """

    name: ClassVar[str] = "expected-variance-reduction"
    needs_estimator: ClassVar[bool] = True
    uses_total: ClassVar[bool] = False
    design: ClassVar[str] = "variance-reduction"

    def _select(self, state: PolicyState, n: int) -> Selection:
        return _greedy(_linearize(state, state.scores), state, n)

    def select_each(self, states: Sequence[PolicyState], n: int) -> list[Selection]:
        """See `Policy.select_each`: one linearisation for many rows."""
        alone = [n < 1 or _is_alone(state, states) for state in states]
        chosen = {i: self.select(s, n) for i, s in enumerate(states) if alone[i]}
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


def _greedy(lines: Linearization, state: PolicyState, n: int) -> Selection:
    designs = row_designs(lines, state)
    return choose_greedily(state, n, lambda i: designs[i].score_gains(), lambda i, j: designs[i].take(j))
