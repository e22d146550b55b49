"""The objective "distribution" as a backtest: one study over all test rows, judged by its score
distribution.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.backtest._engine import Record, Task
from agent.backtest._fits import fit_and_save, fit_folder, fitted
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split
from assay.errors import UsageError
from assay.matrix import ScoreMatrix
from estimators import Estimator
from estimators.distribution import QUANTILES, quantiles_of, score_distribution, wasserstein
from estimators.quantile_intervals import QuantileFactors
from policies import make_policy
from policies.rehearsal import learn_quantile_factors
from policies.replay import replay_cells

__all__ = ["DistributionObjective", "distribution_metrics", "true_row_scores"]

FIT, CALIBRATE, REPLAY = 0, 1, 2
LEVEL = 0.9
BATCH = 50


class DistributionObjective:
    """All test rows (templates of a model, or models) are the rows of one study; budgets are cells.

    Where the folder has no split column and no other way to divide it is chosen, all rows are tested and
    there is no history. A batch of 1 leaves the batch to the policy.
    """

    default_estimator = "x-pirt"
    needs_history = False

    def check(self, settings: BacktestSettings, splits: Sequence[Split]) -> None:
        """Budgets are whole numbers of cells, and no more than there are."""
        if any(budget != int(budget) for budget in settings.budgets):
            raise UsageError("budgets of the objective 'distribution' are whole numbers of cells")
        cells = min(int(split.test.observed.sum()) for split in splits)
        if max(settings.budgets) > cells:
            raise UsageError(f"a budget of {max(settings.budgets):g} is more than the {cells} cells")

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
            tasks += [Task(CALIBRATE, policy, *point) for policy in settings.policies for point in grid]
        return tasks + [Task(REPLAY, policy, *point) for policy in settings.policies for point in grid]

    def run(self, task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
        """See `Objective.run`."""
        if task.stage == FIT:
            return fit_and_save(task, split, folder)
        estimator, test = fitted(task, folder), split.test
        policy = make_policy(task.policy, seed=task.seed)
        budgets = [int(budget) for budget in settings.budgets]
        batch = settings.batch if settings.batch > 1 else int(getattr(policy, "batch", BATCH))
        path = fit_folder(task, folder) / f"quantile-factors-{task.policy}.json"
        if task.stage == CALIBRATE:
            factors = learn_quantile_factors(
                split.history,
                estimator,
                lambda seed: make_policy(task.policy, seed=seed),
                rows=[test.n_methods],
                cells=[budget / test.n_methods for budget in budgets],
                batch=batch,
                levels=[LEVEL],
                seed=task.seed,
            )
            if factors is None:
                raise UsageError(
                    f"conformal intervals need a history of {3 * test.n_methods} complete rows",
                    "try fewer rows with --test-rows, or leave --intervals out",
                )
            path.write_text(json.dumps(factors.to_json()), encoding="utf-8")
            return {}
        policy.prepare(split.history, estimator)
        learned = None
        if settings.intervals == "conformal":
            learned = QuantileFactors.from_json(json.loads(path.read_text(encoding="utf-8")))
        truth = true_row_scores(test)
        found = replay_cells(test, policy, estimator, budgets, batch=batch, seed=task.seed)
        entries = [distribution_metrics(estimator, observed, truth, task.seed, learned) for observed in found]
        return {"at": entries, "truth": np.sort(truth).tolist()}

    def summarise(
        self, settings: BacktestSettings, splits: Sequence[Split], records: dict[Task, Record]
    ) -> list[Record]:
        """See `Objective.summarise`: metrics are means over the splits; `estimated` and `true` of the
        first.
        """
        results = []
        for policy in settings.policies:
            for estimator in settings.estimators:
                for place, budget in enumerate(settings.budgets):
                    for seed in range(settings.seeds):
                        tasks = [Task(REPLAY, policy, estimator, seed, i) for i in range(len(splits))]
                        entries = [records[task]["at"][place] for task in tasks]
                        results.append(
                            {
                                "policy": policy,
                                "estimator": estimator,
                                "budget": int(budget),
                                "seed": seed,
                                **_mean([entry["metrics"] for entry in entries]),
                                "estimated": entries[0]["estimated"],
                                "true": records[tasks[0]]["truth"],
                            }
                        )
        return results


def distribution_metrics(
    estimator: Estimator,
    observed: NDArray[np.float64],
    truth: NDArray[np.float64],
    seed: int,
    learned: QuantileFactors | None = None,
) -> Record:
    """Errors of the estimated distribution of R rows' scores.

    Args:
        estimator: Fitted.
        observed: (R, N) acquired scores, NaN elsewhere.
        truth: (R,) true scores.
        seed: Seed of the joint draws.
        learned: What the quantiles' intervals are stretched by; default not at all.

    Returns:
        `metrics`: w1 (Wasserstein-1), q05 to q95 (absolute errors of the quantiles), coverage and
        mean_width of the quantiles' 90 % intervals, fit_seconds; `estimated`: the (R,) expected order
        statistics; `inside`: (Q,) whether each quantile's interval holds it.
    """
    start = time.perf_counter()
    found = score_distribution(estimator, observed, np.random.default_rng(seed))
    seconds = time.perf_counter() - start
    wanted = quantiles_of(truth, QUANTILES)
    cells = float((~np.isnan(observed)).sum() / len(observed))
    factor = learned.factors(QUANTILES, LEVEL, len(observed), cells) if learned else 1.0
    low, high = found.intervals(QUANTILES, LEVEL, factor)
    errors = np.abs(found.quantiles(QUANTILES) - wanted)
    inside = (low - 1e-9 <= wanted) & (wanted <= high + 1e-9)
    metrics = {
        "w1": wasserstein(found.order, truth),
        **{f"q{round(100 * q):02d}": float(error) for q, error in zip(QUANTILES, errors, strict=True)},
        "coverage": float(inside.mean()),
        "mean_width": float((high - low).mean()),
        "fit_seconds": seconds,
    }
    return {"metrics": metrics, "estimated": found.order.tolist(), "inside": inside.tolist()}


def true_row_scores(test: ScoreMatrix) -> NDArray[np.float64]:
    """(R,) benchmark score of each row; missing cells leave their weight to the others of the row."""
    weights = np.where(test.observed, test.weights, 0.0)
    total = weights.sum(axis=1)
    if (total == 0).any():
        raise UsageError("a test row has no scores at all", "leave it out of the backtest")
    scores: NDArray[np.float64] = (np.nan_to_num(test.values) * weights).sum(axis=1) / total
    return scores


def _mean(entries: Sequence[Record]) -> Record:
    return {name: float(np.mean([entry[name] for entry in entries])) for name in entries[0]}
