"""UCB-E: the row with the largest upper confidence bound, then a uniform prompt of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from policies._base import Policy, PolicyState, Recommendation, Selection
from policies._rows import RowMeans, tied_best

__all__ = ["UcbEPolicy"]


class UcbEPolicy(Policy):
    """UCB-E (Audibert and Bubeck, 2010; Zhou et al., algorithm 1).

    B_i = mean_i + sqrt(a / n_i), infinite where n_i = 0; rows without candidates are excluded, ties are
    broken at random. Pending cells count in n_i but not in the mean, so that a batch asked for before its
    answers spreads over the rows. With unequal prompt weights the mean is the weighted one.

    Args:
        a: Exploration; 1 is best throughout the paper's datasets.
        batch: Columns drawn of the chosen row before the bounds are looked at again. 1 is the quickest to the
            best row on most runs, but an unlucky first few answers shut the best row out for good in about
            one run in 25 (40 draws of 100 Open LLM training models); from 8 on this all but disappears.
        seed: Unused; kept for the common constructor.
    """

    name: ClassVar[str] = "ucb-e"
    uses_total: ClassVar[bool] = False

    def __init__(self, *, a: float = 1.0, batch: int = 16, seed: int = 0) -> None:
        super().__init__(seed=seed)
        if a < 0 or batch < 1:
            raise BadInputError(f"ucb-e needs a >= 0 and batch >= 1, got {a:g} and {batch}")
        self.a = a
        self.batch = batch

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"a": self.a, "batch": self.batch, **super().params()}

    def recommend(self, state: PolicyState) -> Recommendation:
        """See `SupportsRecommendation.recommend`."""
        return RowMeans.of(state).recommendation()

    def _select(self, state: PolicyState, n: int) -> Selection:
        return self._pull(state, n, None)

    def replay(self, state: PolicyState, answers: NDArray[np.float64], n: int) -> Selection:
        """See `SupportsReplay.replay`; a step costs O(rows) instead of O(cells)."""
        table = np.asarray(answers, dtype=np.float64)
        return self._pull(state, n, lambda row, column: float(table[row, column]))

    def _pull(self, state: PolicyState, n: int, answer: Callable[[int, int], float] | None) -> Selection:
        """Choose n cells; `answer` gives their scores, batch by batch, None leaves them pending."""
        arms = _Arms(state, self.a)
        cells: list[tuple[int, int]] = []
        probability: list[float] = []
        while len(cells) < n:
            batch = list(self._batch(arms, state.rng, min(self.batch, n - len(cells))))
            if not batch:
                break
            cells += [cell for cell, _ in batch]
            probability += [chance for _, chance in batch]
            if answer is not None:
                arms.hear([(row, column, answer(row, column)) for (row, column), _ in batch])
        chosen = np.array(cells, dtype=np.intp).reshape(-1, 2)
        return Selection.of(chosen[:, 0], chosen[:, 1], probability=probability)

    def _batch(
        self, arms: _Arms, rng: np.random.Generator, n: int
    ) -> Iterator[tuple[tuple[int, int], float]]:
        """Cells and their probabilities: n of one row, or what it has left and then of the next."""
        while n > 0 and len(tied := tied_best(arms.bounds)):
            row = int(tied[rng.integers(len(tied))]) if len(tied) > 1 else int(tied[0])
            chance = 1.0 / len(tied)
            left = arms.left(row)
            for _ in range(min(n, len(left))):
                column = left.pop(int(rng.integers(len(left))))
                arms.ask(row)
                yield (row, column), chance / (len(left) + 1)
                chance = 1.0
                n -= 1
            arms.refresh(row)


class _Arms:
    """The rows' running sums and bounds; lists of open columns are made when a row is first drawn."""

    def __init__(self, state: PolicyState, a: float) -> None:
        seen = ~np.isnan(state.scores)
        uniform = np.ptp(state.weights) == 0.0
        weights = np.ones_like(state.weights) if uniform else state.weights  # ones keep sums of 0/1 exact
        self._a = a
        self._candidates = state.candidates
        self._weights: list[float] = weights.tolist()
        self._total: list[float] = (seen @ weights).tolist()
        self._sum: list[float] = (np.where(seen, state.scores, 0.0) @ weights).tolist()
        self._asked: list[int] = (seen | state.pending).sum(axis=1).tolist()
        self._open: list[int] = self._candidates.sum(axis=1).tolist()
        self._left: dict[int, list[int]] = {}
        self.bounds = np.empty(len(state.scores))
        for row in range(len(state.scores)):
            self.refresh(row)

    def left(self, row: int) -> list[int]:
        """Columns of a row that may still be chosen, ascending."""
        if row not in self._left:
            self._left[row] = np.flatnonzero(self._candidates[row]).tolist()
        return self._left[row]

    def ask(self, row: int) -> None:
        """Count a cell as asked for."""
        self._open[row] -= 1
        self._asked[row] += 1

    def hear(self, answers: list[tuple[int, int, float]]) -> None:
        """Take the scores of cells (row, column, score) that were asked for."""
        for row, column, score in answers:
            weight = self._weights[column]
            self._total[row] += weight
            self._sum[row] += weight * score
        for row in {row for row, _, _ in answers}:
            self.refresh(row)

    def refresh(self, row: int) -> None:
        asked, total = self._asked[row], self._total[row]
        if self._open[row] == 0:
            self.bounds[row] = -inf
        elif asked == 0:
            self.bounds[row] = inf
        else:  # a row of which nothing has arrived yet is taken to be perfect
            mean = self._sum[row] / total if total > 0 else 1.0
            self.bounds[row] = mean + sqrt(self._a / asked)
