"""The estimate objective: how far the reported benchmark score of each test row is from the true one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.backtest._engine import Record, Task
from agent.backtest._metrics import estimate_metrics, rank_correlation
from agent.backtest._replay import replay
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split, true_scores
from assay.errors import UsageError
from estimators import Estimator, make_estimator
from estimators._artifact import load_estimator
from policies import Policy, make_policy

__all__ = ["EstimateObjective"]

SAMPLE_MEMORY = 2**28  # bytes that an estimator's 256 joint samples of a chunk of rows may take


class EstimateObjective:
    """Each test row is one estimate study; budgets are prompts per row.

    Estimators are fitted first, once per split and seed, and then shared by all policies.
    """

    def check(self, settings: BacktestSettings, splits: Sequence[Split]) -> None:
        """Budgets are whole numbers of prompts, and no more than there are."""
        if any(budget != int(budget) for budget in settings.budgets):
            raise UsageError("budgets of the objective 'estimate' are whole numbers of prompts")
        n = splits[0].test.n_prompts
        if max(settings.budgets) > n:
            raise UsageError(
                f"a budget of {max(settings.budgets):g} is more than the benchmark's {n} prompts"
            )

    def tasks(self, settings: BacktestSettings, splits: int) -> list[Task]:
        """See `Objective.tasks`."""
        grid = [
            (name, seed, split)
            for name in settings.estimators
            for seed in range(settings.seeds)
            for split in range(splits)
        ]
        fits = [Task(0, "", *point) for point in grid]
        return fits + [Task(1, policy, *point) for policy in settings.policies for point in grid]

    def run(self, task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
        """See `Objective.run`."""
        fitted = (
            folder / f"fit-{sha256(f'{task.estimator}/{task.seed}/{task.split}'.encode()).hexdigest()[:16]}"
        )
        if task.stage == 0:
            return _fit(task, split, fitted)
        return _replay(task, settings, split, load_estimator(fitted))

    def summarise(
        self, settings: BacktestSettings, splits: Sequence[Split], records: dict[Task, Record]
    ) -> list[Record]:
        """See `Objective.summarise`."""
        truth = [true_scores(split.test) for split in splits]
        return [
            {
                "policy": policy,
                "estimator": estimator,
                "budget": int(budget),
                "seed": seed,
                **_entry(policy, estimator, int(budget), seed, truth, records),
            }
            for policy in settings.policies
            for estimator in settings.estimators
            for budget in settings.budgets
            for seed in range(settings.seeds)
        ]


def _fit(task: Task, split: Split, folder: Path) -> Record:
    start = time.perf_counter()
    estimator = make_estimator(task.estimator, seed=task.seed).fit(split.history)
    seconds = time.perf_counter() - start
    estimator.save(folder)
    return {"fit_seconds": seconds}


def _replay(task: Task, settings: BacktestSettings, split: Split, estimator: Estimator) -> Record:
    policy = _policy(task, settings)
    start = time.perf_counter()
    policy.prepare(split.history, estimator)
    prepared = time.perf_counter() - start
    budgets = [int(budget) for budget in settings.budgets]
    record: Record = {"prepare_seconds": prepared, "at": {}}
    for budget, state in replay(
        split.test,
        policy,
        estimator,
        budgets=budgets,
        batch=settings.batch,
        seed=task.seed,
        embeddings=split.matrix.embeddings,
    ):
        mean, std = _estimates(estimator, state.observed)
        record["at"][str(budget)] = {
            "mean": mean.tolist(),
            "std": std.tolist(),
            "decision_ms": 1000.0 * state.seconds / max(state.decisions, 1),
        }
    return record


def _policy(task: Task, settings: BacktestSettings) -> Policy:
    policy = make_policy(task.policy, seed=task.seed)
    if settings.force and "force" in policy.params():
        return make_policy(task.policy, **{**policy.params(), "force": True})
    return policy


def _estimates(
    estimator: Estimator, observed: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(B,) mean and standard deviation, in chunks of rows that fit in memory."""
    chunk = max(1, SAMPLE_MEMORY // (256 * 8 * observed.shape[1]))
    parts = [estimator.benchmark_score(observed[i : i + chunk]) for i in range(0, len(observed), chunk)]
    return np.concatenate([part.mean for part in parts]), np.concatenate([part.std for part in parts])


def _entry(
    policy: str,
    estimator: str,
    budget: int,
    seed: int,
    truth: Sequence[NDArray[np.float64]],
    records: dict[Task, Record],
) -> dict[str, Any]:
    """Metrics over the rows of all splits; ranks are compared within splits that have several rows."""
    numbers = range(len(truth))
    fits = [records[Task(0, "", estimator, seed, i)] for i in numbers]
    runs = [records[Task(1, policy, estimator, seed, i)] for i in numbers]
    at = [run["at"][str(budget)] for run in runs]
    means = [np.array(row["mean"]) for row in at]
    metrics: dict[str, Any] = estimate_metrics(
        np.concatenate(means), np.concatenate([row["std"] for row in at]), np.concatenate(truth)
    )
    return {
        **metrics,
        "kendall_tau": _rank_metric(means, truth),
        "fit_seconds": float(np.mean([fit["fit_seconds"] for fit in fits])),
        "prepare_seconds": float(np.mean([run["prepare_seconds"] for run in runs])),
        "decision_ms": float(np.mean([row["decision_ms"] for row in at])),
    }


def _rank_metric(means: Sequence[NDArray[np.float64]], truth: Sequence[NDArray[np.float64]]) -> float | None:
    if all(len(rows) == 1 for rows in truth):  # leave-one-out: only the rows together have an order
        return rank_correlation(np.concatenate(means), np.concatenate(truth))
    taus = [rank_correlation(mean, true) for mean, true in zip(means, truth, strict=True)]
    defined = [tau for tau in taus if tau is not None]
    return float(np.mean(defined)) if defined else None
