"""Replaying acquisition on rows whose scores are all known, step by step as a live study would go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from estimators import Estimator
from policies import Policy, PolicyState
from policies.acquisition import batch_size, build_state

__all__ = ["Replay", "replay"]


@dataclass
class Replay:
    """Where the replays of B test rows stand.

    Attributes:
        observed: (B, N) scores acquired so far; NaN = not acquired.
        order: For each row the prompts acquired, in order.
        decisions: How many decisions were taken, over all rows.
        seconds: Wall-clock seconds that the decisions took.
    """

    observed: NDArray[np.float64]
    order: list[list[int]] = field(default_factory=list)
    decisions: int = 0
    seconds: float = 0.0


def replay(
    test: ScoreMatrix,
    policy: Policy,
    estimator: Estimator,
    *,
    budgets: Sequence[int],
    batch: int = 1,
    seed: int = 0,
    embeddings: NDArray[np.float32] | None = None,
) -> Iterator[tuple[int, Replay]]:
    """Acquire scores of each test row up to each budget; each row is a study of its own.

    A policy that looks at the total gets a run per budget; any other gets one run, from which a budget
    between two full batches is reached by a smaller batch on the side, just as a live study would end.

    Args:
        test: (B, N) rows with their true scores; missing ones cannot be acquired.
        policy: Prepared policy.
        estimator: Fitted estimator.
        budgets: Prompts per row, ascending.
        batch: Prompts per decision.
        seed: Seed of each row's study.
        embeddings: (N, d) prompt vectors, or None.

    Yields:
        Each budget and the replay as it stands there (do not change it).
    """
    runs = [[budget] for budget in budgets] if policy.uses_total else [list(budgets)]
    for wanted in runs:
        run = _Run(test, policy, estimator, batch, seed, max(wanted), embeddings)
        yield from run.until(wanted)


class _Run:
    """One pass over all test rows towards one total."""

    def __init__(
        self,
        test: ScoreMatrix,
        policy: Policy,
        estimator: Estimator,
        batch: int,
        seed: int,
        total: int,
        embeddings: NDArray[np.float32] | None,
    ) -> None:
        self.test, self.policy, self.estimator = test, policy, estimator
        self.batch, self.seed, self.total = batch, seed, total
        self.embeddings = embeddings
        self.truth = test.values.astype(np.float64)

    def until(self, budgets: Sequence[int]) -> Iterator[tuple[int, Replay]]:
        """Yield the replay at each budget of this run."""
        now, asked = Replay(np.full(self.truth.shape, np.nan), [[] for _ in self.truth]), 0
        for budget in budgets:
            while batch_size(asked, budget, self.batch) == self.batch:
                self._step(now, self.batch)
                asked += self.batch
            if asked == budget:
                yield budget, now
                continue
            side = replace(now, observed=now.observed.copy(), order=[list(row) for row in now.order])
            self._step(side, budget - asked)
            yield budget, side

    def _step(self, now: Replay, n: int) -> None:
        states = [self._state(i, now.observed[i]) for i in range(len(self.truth))]
        start = time.perf_counter()
        chosen = self.policy.select_each(states, n)
        now.seconds += time.perf_counter() - start
        now.decisions += len(states)
        for i, selection in enumerate(chosen):
            now.observed[i, selection.columns] = self.truth[i, selection.columns]
            now.order[i].extend(selection.columns.tolist())

    def _state(self, i: int, observed: NDArray[np.float64]) -> PolicyState:
        return build_state(
            observed,
            seed=self.seed,
            methods=(self.test.method_ids[i],),
            weights=self.test.weights,
            dataset_index=self.test.dataset_index,
            estimator=self.estimator,
            total=self.total,
            available=~np.isnan(self.truth[i]),
            embeddings=self.embeddings,
        )
