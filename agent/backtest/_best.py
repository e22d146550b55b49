"""The objective "best" as a backtest: one study over all test rows per policy and seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.backtest._engine import Record, Task
from agent.backtest._fits import fit_and_save, fitted
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split
from agent.backtest.best import BestTruth, replay_best
from assay.errors import UsageError
from policies import POLICIES, SupportsRecommendation, make_policy

__all__ = ["BestObjective"]

FIT, REPLAY = 0, 1


class BestObjective:
    """All test rows are the methods of one study; budgets are shares of all its cells.

    Where the folder has no split column and no other way to divide it is chosen, all rows are tested and
    there is no history. A batch of 1 leaves the batch to the policy.
    """

    default_estimator = "aggregate"
    needs_history = False

    def check(self, settings: BacktestSettings, splits: Sequence[Split]) -> None:
        """Policies must name a best row; budgets are shares."""
        able = [name for name in POLICIES.names() if isinstance(make_policy(name), SupportsRecommendation)]
        for name in settings.policies:
            if name not in able:
                raise UsageError(f"policy '{name}' cannot name a best method", f"known: {', '.join(able)}")
        if max(settings.budgets) > 1:
            raise UsageError("budgets of the objective 'best' are shares of all cells, such as 0.05,0.1")

    def tasks(self, settings: BacktestSettings, splits: int) -> list[Task]:
        """See `Objective.tasks`."""
        grid = [
            (name, seed, split)
            for name in settings.estimators
            for seed in range(settings.seeds)
            for split in range(splits)
        ]
        fits = [Task(FIT, "", *point) for point in grid]
        return fits + [Task(REPLAY, policy, *point) for policy in settings.policies for point in grid]

    def run(self, task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
        """See `Objective.run`."""
        if task.stage == FIT:
            return fit_and_save(task, split, folder)
        estimator, test = fitted(task, folder), split.test
        policy = make_policy(task.policy, seed=task.seed)
        start = time.perf_counter()
        policy.prepare(split.history, estimator)
        prepared = time.perf_counter() - start
        entries = replay_best(
            policy,
            test,
            BestTruth.of(test),
            shares=list(settings.budgets),
            seed=task.seed,
            estimator=estimator,
            batch=settings.batch if settings.batch > 1 else None,
        )
        return {"prepare_seconds": prepared, "at": list(entries)}

    def summarise(
        self, settings: BacktestSettings, splits: Sequence[Split], records: dict[Task, Record]
    ) -> list[Record]:
        """See `Objective.summarise`: metrics are means over the splits."""
        return [
            {
                "policy": policy,
                "estimator": estimator,
                "budget": budget,
                "seed": seed,
                **_mean([records[Task(REPLAY, policy, estimator, seed, i)]["at"][place] for i in numbers]),
            }
            for numbers in [range(len(splits))]
            for policy in settings.policies
            for estimator in settings.estimators
            for place, budget in enumerate(settings.budgets)
            for seed in range(settings.seeds)
        ]


def _mean(entries: Sequence[Record]) -> Record:
    """Each metric's mean over the splits."""
    names = [name for name in entries[0] if name != "budget"]
    return {name: float(np.mean([entry[name] for entry in entries])) for name in names}
