"""A live study and a backtest with the same seed: the same cells in the same order, the same estimate.

test_live_matches_backtest.py does so for every policy, up to the order inside a step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.backtest import BacktestSettings, build_splits, replay
from estimators import Estimator, load_estimator, make_estimator
from policies import make_policy
from storage import estimates, versions
from storage.tables import Job
from tests.world import World

SEED, BATCH, BUDGET = 3, 5, 12
POLICIES = (
    "uniform",
    "stratified",
    "cluster-score",
    "cluster-irt",
    "combinatorial",
    "static-design",
    "uncertainty",
    "information-gain",
    "expected-variance-reduction",
)


def live(world: World, policy: str) -> tuple[list[int], tuple[float, float], Estimator]:
    """Columns in the order of acquisition, the final estimate, and the estimator that made it."""
    method = world.add_model("m17")
    study = world.add_study(method, policy=policy, seed=SEED, batch_size=BATCH, max_prompts=BUDGET)
    world.settle()
    order = [job.prompt_id - 1 for job in sorted(world.jobs(study), key=_id)]
    with world.database.read() as session:
        last = estimates.history(session, study)[-1]
        version_id = world.study(study).version_id
        assert version_id is not None
        folder = versions.artifact_folder(session, version_id, world.settings.cache_dir)
    return order, (last.score, last.std), load_estimator(folder)


def _id(job: Job) -> int:
    return job.id or 0


def backtest(folder: Path, policy_name: str) -> tuple[list[int], tuple[float, float], Estimator]:
    """The same from `assay backtest`'s parts."""
    (split,) = build_splits(BacktestSettings(str(folder)))
    estimator = make_estimator("linear-gaussian").fit(split.history)
    policy = make_policy(policy_name, seed=SEED)
    policy.prepare(split.history, estimator)
    row = split.test.method_ids.index("m17")
    ((_, at),) = replay(split.test, policy, estimator, budgets=[BUDGET], batch=BATCH, seed=SEED)
    score = estimator.benchmark_score(at.observed[[row]])
    return at.order[row], (float(score.mean[0]), float(score.std[0])), estimator


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_same_cells_same_estimate(world: World, policy: str) -> None:
    (live_order, live_score, live_fit), (order, score, fit) = (
        live(world, policy),
        backtest(world.matrix, policy),
    )
    nothing = np.full((1, 36), np.nan)
    np.testing.assert_array_equal(live_fit.predict(nothing).mean, fit.predict(nothing).mean)
    assert live_order == order
    assert live_score == pytest.approx(score, abs=1e-12)
