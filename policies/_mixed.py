"""Spending a share of a study on prompts that no history says anything about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import Estimator
from policies._base import Policy, PolicyState, Selection

__all__ = ["MixedPolicy", "cold_share"]

COLD_VALUE = 2.0
"""How much more of a study a unit of weight without history gets. Prompts with history are predicted well
from few answers, the others are not. Chosen on training models of Open LLM with three pairs of datasets
hidden: best were 2 to 3 before any answer was pooled, 1.5 to 2.5 after fifty models."""


class MixedPolicy(Policy):
    """A policy, but for a share of the cells, which is drawn at random among prompts without history.

    What a policy expects of a prompt is learned from other methods' answers to it. Where there are none, it
    chooses blindly or not at all; a random sample does not. The share is kept to at every step, whatever the
    batch; inside it, a cell's dataset is drawn by the weight of its prompts without history, its prompt
    uniformly, and the probability is recorded. The inner policy sees the other prompts only.

    States without such prompts, and policies that choose among all prompts by themselves
    (`Policy.needs_no_history`), are left to the inner policy.

    Args:
        inner: The policy of the prompts with history.
        share: Share of the cells that is drawn, in [0, 1]; None = by `cold_share`.
    """

    name: ClassVar[str] = "mixed"

    def __init__(self, inner: Policy, *, share: float | None = None) -> None:
        super().__init__(seed=inner.seed)
        if share is not None and not 0.0 <= share <= 1.0:
            raise BadInputError(f"the share of prompts without history must lie in [0, 1], got {share}")
        self.inner = inner
        self.share = share

    @property
    def needs_estimator(self) -> bool:  # type: ignore[override]
        """The inner policy's."""
        return self.inner.needs_estimator

    @property
    def uses_total(self) -> bool:  # type: ignore[override]
        """The inner policy's."""
        return self.inner.uses_total

    @property
    def uses_embeddings(self) -> bool:  # type: ignore[override]
        """The inner policy's."""
        return self.inner.uses_embeddings

    @property
    def design(self) -> str:  # type: ignore[override]
        """The inner policy's."""
        return self.inner.design

    def params(self) -> dict[str, Any]:
        """See `Policy.params`: the inner policy's."""
        return self.inner.params()

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """See `Policy.prepare`."""
        self.inner.prepare(history, estimator)

    def select(self, state: PolicyState, n: int) -> Selection:
        """See `Policy.select`."""
        return self.select_each([state], n)[0]

    def select_each(self, states: Sequence[PolicyState], n: int) -> list[Selection]:
        """See `Policy.select_each`."""
        drawn = {i: _draw(s, self._quota(s, n)) for i, s in enumerate(states) if self._mixes(s) and n > 0}
        chosen: dict[int, Selection] = {}
        left = [n - len(drawn[i]) if i in drawn else n for i in range(len(states))]
        for count in sorted(set(left)):
            group = [i for i in range(len(states)) if left[i] == count]
            seen = [_with_history(states[i]) if i in drawn else states[i] for i in group]
            chosen.update(zip(group, self.inner.select_each(seen, count), strict=True))
        return [_joined(drawn[i], chosen[i]) if i in drawn else chosen[i] for i in range(len(states))]

    def _select(self, state: PolicyState, n: int) -> Selection:
        return self.select(state, n)

    def _mixes(self, state: PolicyState) -> bool:
        return state.cold is not None and bool(state.cold.any()) and not self.inner.needs_no_history

    def _quota(self, state: PolicyState, n: int) -> int:
        """How many of the next n cells are drawn among the prompts without history."""
        assert state.cold is not None
        share = cold_share(state) if self.share is None else self.share
        asked = ~np.isnan(state.scores) | state.pending
        wanted = round(share * (int(asked.sum()) + n)) - int(asked[:, state.cold].sum())
        free, free_cold = int(state.candidates.sum()), int(state.candidates[:, state.cold].sum())
        fewest = n - (free - free_cold)  # what the others cannot fill
        return int(np.clip(wanted, max(0, min(fewest, free_cold)), min(n, free_cold)))


def cold_share(state: PolicyState) -> float:
    """The default share: by weight, prompts without history counting `COLD_VALUE` times."""
    assert state.cold is not None
    weight = float(state.weights[state.cold].sum())
    return COLD_VALUE * weight / (COLD_VALUE * weight + 1.0 - weight)


def _with_history(state: PolicyState) -> PolicyState:
    """The state with nothing to choose among prompts without history."""
    assert state.cold is not None
    return replace(state, available=state.available & ~state.cold)


def _draw(state: PolicyState, n: int) -> Selection:
    """Draw n cells without history, each uniformly from the dataset that has had least of its share."""
    assert state.cold is not None
    free = np.argwhere(state.candidates & state.cold)
    stratum = free[:, 0] * (int(state.dataset_index.max()) + 1) + state.dataset_index[free[:, 1]]
    names, of = np.unique(stratum, return_inverse=True)
    left = [list(state.rng.permutation(np.flatnonzero(of == s))) for s in range(len(names))]
    taken, weight = _taken(state, names)
    chosen, probability = [], []
    for _ in range(n):
        behind = np.array([taken[s] / weight[s] if left[s] else np.inf for s in range(len(names))])
        ties = np.flatnonzero(behind <= behind.min() * (1.0 + 1e-9))
        s = int(state.rng.choice(ties))
        probability.append(1.0 / (len(ties) * len(left[s])))
        chosen.append(left[s].pop())
        taken[s] += 1
    cells = free[np.array(chosen, dtype=np.intp)]
    return Selection.of(cells[:, 0], cells[:, 1], probability=np.array(probability))


def _taken(state: PolicyState, strata: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cells asked for so far, and weight, of each stratum's (row, dataset) prompts without history."""
    rows, datasets = np.divmod(strata, int(state.dataset_index.max()) + 1)
    asked = ~np.isnan(state.scores) | state.pending
    inside = (state.dataset_index == datasets[:, None]) & state.cold
    taken = (asked[rows] & inside).sum(axis=1).astype(np.float64)
    return taken, np.maximum(inside @ state.weights, 1e-12)


def _joined(drawn: Selection, chosen: Selection) -> Selection:
    return Selection(*(np.concatenate([getattr(chosen, k), getattr(drawn, k)]) for k in vars(drawn)))
