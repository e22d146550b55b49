"""The estimate objective: how far the reported benchmark score of each test row is from the true one."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.backtest._engine import Record, Task
from agent.backtest._fits import fit_and_save, fit_folder, fitted
from agent.backtest._metrics import LEVEL, estimate_metrics, normal_interval, rank_correlation
from agent.backtest._replay import replay
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split, true_scores
from assay.errors import UsageError
from assay.matrix import ScoreMatrix
from estimators import Estimator, ScoreEstimate, estimator_for
from estimators.intervals import ConformalIntervals, calibrate, cross_fit
from policies import POLICIES, MixedPolicy, Policy, make_policy

__all__ = ["EstimateObjective"]

SAMPLE_MEMORY = 2**28  # bytes that an estimator's 256 joint samples of a chunk of rows may take


FIT, CALIBRATE, REPLAY = 0, 1, 2  # stages


class EstimateObjective:
    """Each test row is one estimate study; budgets are prompts per row.

    Estimators are fitted first, once per split and seed, and then shared by all policies; so are the
    calibrations of conformal intervals.
    """

    default_estimator = "linear-gaussian"
    needs_history = True

    def check(self, settings: BacktestSettings, splits: Sequence[Split]) -> None:
        """Budgets are whole numbers of prompts, and no more than there are."""
        if any(budget != int(budget) for budget in settings.budgets):
            raise UsageError("budgets of the objective 'estimate' are whole numbers of prompts")
        n = splits[0].test.n_prompts
        if max(settings.budgets) > n:
            raise UsageError(
                f"a budget of {max(settings.budgets):g} is more than the benchmark's {n} prompts"
            )
        fewest = min(split.test.n_methods for split in splits)
        if settings.pooled >= fewest:
            raise UsageError(f"--pooled {settings.pooled} leaves none of the {fewest} test rows to try")

    def tasks(self, settings: BacktestSettings, splits: int) -> list[Task]:
        """See `Objective.tasks`."""
        grid = [
            (name, seed, split)
            for name in settings.estimators
            for seed in range(settings.seeds)
            for split in range(splits)
        ]
        tasks = [Task(FIT, "", *point) for point in grid]
        if settings.intervals == "conformal":
            designs = dict.fromkeys(POLICIES.get(policy).design for policy in settings.policies)
            tasks += [Task(CALIBRATE, design, *point) for design in designs for point in grid]
        return tasks + [Task(REPLAY, policy, *point) for policy in settings.policies for point in grid]

    def run(self, task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
        """See `Objective.run`."""
        if task.stage == FIT:
            return fit_and_save(task, split, folder)
        if task.stage == CALIBRATE:
            return _calibrate(task, settings, split, folder)
        return _replay(task, settings, split, folder)

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


def _calibrate(task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
    """`task.policy` is the design's name."""
    known = fitted(task, folder)
    start = time.perf_counter()
    held_out = cross_fit(
        known.settled,
        split.history,
        [int(budget) for budget in settings.budgets],
        design=task.policy,
        seed=task.seed,
    )
    content = calibrate(held_out).to_json()
    _intervals_file(task, folder, task.policy).write_text(json.dumps(content), encoding="utf-8")
    return {"calibrate_seconds": time.perf_counter() - start}


def _replay(task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
    estimator, history = fitted(task, folder), split.history
    policy = _policy(task, settings)
    start = time.perf_counter()
    policy.prepare(history, estimator)
    record: Record = {"prepare_seconds": time.perf_counter() - start, "at": {}}
    test = split.test
    if settings.pooled:
        earlier, record["rows"] = _earlier(test.n_methods, settings, task.seed)
        history = _pooled(task, settings, split, policy, estimator, earlier)
        estimator = estimator_for(history, task.estimator, {"seed": task.seed}).fit(history)
        policy.prepare(history, estimator)
        test = test.rows(record["rows"])
    conformal = _conformal(task, policy, settings, folder)
    for budget, state in replay(
        test,
        policy,
        estimator,
        budgets=[int(budget) for budget in settings.budgets],
        batch=settings.batch,
        seed=task.draw_seed,
        embeddings=split.matrix.embeddings,
    ):
        record["at"][str(budget)] = {
            **_estimates(estimator, state.observed, conformal),
            "decision_ms": 1000.0 * state.seconds / max(state.decisions, 1),
        }
    return record


def _earlier(n: int, settings: BacktestSettings, seed: int) -> tuple[NDArray[np.intp], list[int]]:
    """Test rows that are evaluated first, drawn by the seed, and the others."""
    order = np.random.default_rng([1, seed]).permutation(n)
    return np.sort(order[: settings.pooled]), sorted(order[settings.pooled :].tolist())


def _pooled(
    task: Task,
    settings: BacktestSettings,
    split: Split,
    policy: Policy,
    estimator: Estimator,
    earlier: NDArray[np.intp],
) -> ScoreMatrix:
    """The history with the answers that the earlier rows acquired, each in a study of its own."""
    rows, history = split.test.rows(earlier), split.history
    ((_, done),) = replay(
        rows,
        policy,
        estimator,
        budgets=[settings.pooled_prompts],
        batch=settings.batch,
        seed=task.draw_seed,
        embeddings=split.matrix.embeddings,
    )
    return dataclasses.replace(
        history,
        values=np.concatenate([history.values, done.observed.astype(np.float32)]),
        method_ids=(*history.method_ids, *rows.method_ids),
    )


def _intervals_file(task: Task, folder: Path, design: str) -> Path:
    return fit_folder(task, folder) / f"intervals-{design}.json"


def _conformal(
    task: Task, policy: Policy, settings: BacktestSettings, folder: Path
) -> ConformalIntervals | None:
    if settings.intervals != "conformal":
        return None
    content = _intervals_file(task, folder, policy.design).read_text(encoding="utf-8")
    return ConformalIntervals.from_json(json.loads(content))


def _policy(task: Task, settings: BacktestSettings) -> Policy:
    policy = make_policy(task.policy, seed=task.draw_seed, **settings.policy_settings.get(task.policy, {}))
    if settings.force and "force" in policy.params():
        policy = make_policy(task.policy, **{**policy.params(), "force": True})
    return MixedPolicy(policy, share=settings.cold_share)


def _estimates(
    estimator: Estimator, observed: NDArray[np.float64], conformal: ConformalIntervals | None
) -> dict[str, list[float]]:
    """Estimate and ends of the 95 % interval of each row, in chunks of rows that fit in memory."""
    chunk = max(1, SAMPLE_MEMORY // (256 * 8 * observed.shape[1]))
    parts = [estimator.benchmark_score(observed[i : i + chunk]) for i in range(0, len(observed), chunk)]
    score = ScoreEstimate(
        np.concatenate([part.mean for part in parts]), np.concatenate([part.std for part in parts])
    )
    if conformal is None:
        low, high = normal_interval(score.mean, score.std)
    else:
        low, high = conformal.interval(score, (~np.isnan(observed)).sum(axis=1), LEVEL)
    return {"mean": score.mean.tolist(), "low": low.tolist(), "high": high.tolist()}


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
    fits = [records[Task(FIT, "", estimator, seed, i)] for i in numbers]
    runs = [records[Task(REPLAY, policy, estimator, seed, i)] for i in numbers]
    at = [run["at"][str(budget)] for run in runs]
    truth = [true[run["rows"]] if "rows" in run else true for true, run in zip(truth, runs, strict=True)]
    means = [np.array(row["mean"]) for row in at]
    low, high = (np.concatenate([row[end] for row in at]) for end in ("low", "high"))
    return {
        **estimate_metrics(np.concatenate(means), low, high, np.concatenate(truth)),
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
