"""Stratified random acquisition: every dataset equally represented, uniform within."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from policies._base import Policy, PolicyState, Selection

__all__ = ["StratifiedPolicy"]


class StratifiedPolicy(Policy):
    """Draws each next cell uniformly from a stratum (row, dataset) with the fewest cells so far.

    Known and pending cells both count; ties between strata are broken at random, so that every prefix of the
    sequence is as balanced as it can be.
    """

    name: ClassVar[str] = "stratified"
    uses_total: ClassVar[bool] = False
    needs_no_history: ClassVar[bool] = True

    def _select(self, state: PolicyState, n: int) -> Selection:
        strata, taken, cells = _strata(state)
        order = [list(state.rng.permutation(group)) for group in cells]
        chosen, probability = [], []
        for _ in range(min(n, sum(len(group) for group in order))):
            open_strata = np.flatnonzero([len(group) > 0 for group in order])
            fewest = open_strata[taken[open_strata] == taken[open_strata].min()]
            stratum = int(state.rng.choice(fewest))
            probability.append(1.0 / (len(fewest) * len(order[stratum])))
            chosen.append(order[stratum].pop())
            taken[stratum] += 1
        picked = np.array(chosen, dtype=np.intp)
        return Selection.of(
            picked // strata.shape[1], picked % strata.shape[1], probability=np.array(probability)
        )


def _strata(state: PolicyState) -> tuple[NDArray[np.intp], NDArray[np.int64], list[NDArray[np.intp]]]:
    """Stratum of each cell (R, N), cells already taken per stratum, and candidates (flat) per stratum."""
    n_rows, _ = state.scores.shape
    n_datasets = int(state.dataset_index.max()) + 1
    strata = np.arange(n_rows)[:, None] * n_datasets + state.dataset_index[None, :]
    used = ~np.isnan(state.scores) | state.pending
    taken = np.bincount(strata[used], minlength=n_rows * n_datasets)
    candidates = np.flatnonzero(state.candidates)
    of_candidate = strata.reshape(-1)[candidates]
    cells = [candidates[of_candidate == stratum] for stratum in range(n_rows * n_datasets)]
    return strata, taken, cells
