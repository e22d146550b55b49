"""One random prompt at a time, put to every method."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.matrix import BoolArray
from policies._base import PolicyState, Selection
from policies._judges_by_row_means import JudgesByRowMeans

__all__ = ["FilledSubsetPolicy"]


class FilledSubsetPolicy(JudgesByRowMeans):
    """Filled subset (Zhou et al., algorithm 4): a uniform column, for all rows, then the next.

    A column that was begun is finished first, its rows in random order; methods that join later thus get the
    prompts that the others had. Of several begun columns the fullest goes first.
    """

    name: ClassVar[str] = "filled-subset"

    def _select(self, state: PolicyState, n: int) -> Selection:
        candidates = state.candidates
        rows, columns, probability = [], [], []
        left = n
        for column, chance in _column_order(state, candidates):
            drawn = state.rng.permutation(np.flatnonzero(candidates[:, column]))
            of_cell = 1.0 / (len(drawn) - np.arange(len(drawn)))
            of_cell[0] *= chance
            rows.append(drawn[:left])
            columns.append(np.full(len(rows[-1]), column))
            probability.append(of_cell[:left])
            left -= len(rows[-1])
            if left == 0:
                break
        return Selection.of(
            np.concatenate(rows), np.concatenate(columns), probability=np.concatenate(probability)
        )


def _column_order(state: PolicyState, candidates: BoolArray) -> list[tuple[int, float]]:
    """Columns with candidates in the order of filling, and the probability of each draw among its equals."""
    taken = (~np.isnan(state.scores) | state.pending).sum(axis=0)
    open_columns = state.rng.permutation(np.flatnonzero(candidates.any(axis=0)))
    fullest_first = open_columns[np.argsort(-taken[open_columns], kind="stable")]
    equals: NDArray[np.intp] = taken[fullest_first]
    order = []
    for place, column in enumerate(fullest_first):
        order.append((int(column), 1.0 / float((equals[place:] == equals[place]).sum())))
    return order
