"""A live study with each policy, through one set of real processes: broker, agent, Celery worker, trainer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.supervisor import Supervisor, embedded_children
from policies import POLICIES, SupportsRecommendation, SupportsTraining, make_policy
from storage import catalog, versions
from storage.tables import EstimatorVersion, StudyState, VersionState
from tests.policies.factory import SMALL
from tests.world import BENCHMARK, World

ESTIMATING = [name for name in POLICIES.names() if not isinstance(make_policy(name), SupportsRecommendation)]
SEARCHING = [name for name in POLICIES.names() if name not in ESTIMATING]
HISTORY, CONTENDERS, BOUGHT, BATCH, PATIENCE_S = 24, 3, 12, 5, 150

pytestmark = pytest.mark.slow


class Running:
    """A world in which real processes work."""

    def __init__(self, world: World, supervisor: Supervisor) -> None:
        self.world, self.supervisor = world, supervisor

    def study(self, name: str) -> int:
        """A study of a model of its own with the policy, followed until it is at rest."""
        if issubclass(POLICIES.get(name), SupportsTraining):
            self.train(name)
        model = HISTORY + ESTIMATING.index(name)
        study = self.world.add_study(
            self.world.add_model(f"m{model}"),
            policy=name,
            policy_params=SMALL.get(name, {}),
            max_prompts=BOUGHT,
            batch_size=BATCH,
        )
        return self.followed(study)

    def search(self, name: str) -> int:
        """A study of the objective "best" over models of its own with the policy, until it is at rest."""
        first = HISTORY + len(ESTIMATING) + CONTENDERS * SEARCHING.index(name)
        models = [self.world.add_model(f"m{model}") for model in range(first, first + CONTENDERS)]
        study = self.world.add_study(
            models[0],
            method_ids=models,
            objective="best",
            policy=name,
            max_prompts=CONTENDERS * BOUGHT,
            batch_size=BATCH,
        )
        return self.followed(study)

    def followed(self, study: int) -> int:
        """The study, once it is at rest."""
        until = time.monotonic() + PATIENCE_S
        while self.world.study(study).state in (StudyState.WAITING, StudyState.RUNNING):
            assert time.monotonic() < until, self.world.study(study).reason
            self.supervisor.watch()
            time.sleep(0.05)
        return study

    def train(self, name: str) -> None:
        """A champion of a learned policy, and of its estimator before, from the train queue."""
        with self.world.database.begin() as session:
            benchmark = catalog.find_benchmark(session, BENCHMARK)
            if versions.usable(session, benchmark, self.world.settings.estimator, {}) is None:
                versions.want(session, benchmark, self.world.settings.estimator, {})
        self.wait()
        with self.world.database.begin() as session:
            benchmark = catalog.find_benchmark(session, BENCHMARK)
            versions.want(session, benchmark, self.world.settings.estimator, SMALL[name], policy=name)
        self.wait()

    def wait(self) -> None:
        """Until no version is wanted any more."""
        until, busy = time.monotonic() + PATIENCE_S, (VersionState.WANTED, VersionState.TRAINING)
        while any(version.state in busy for version in self.world.rows(EstimatorVersion)):
            assert time.monotonic() < until
            self.supervisor.watch()
            time.sleep(0.05)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("live")
    tests = len(ESTIMATING) + CONTENDERS * len(SEARCHING)
    world = World.open(folder, sweep_s=1.0).with_history(models=HISTORY + tests, tests=tests)
    environment = {
        "ASSAY_DATA_DIR": str(world.settings.data_dir),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    supervisor = Supervisor(
        embedded_children(world.settings, workers=1, web=False, port=1), world.settings, environment
    )
    try:
        supervisor.start()
        yield Running(world, supervisor)
    finally:
        supervisor.stop()
        world.database.close()


@pytest.mark.parametrize("name", ESTIMATING)
def test_a_study_with_each_policy_through_real_workers(running: Running, name: str) -> None:
    world, study = running.world, running.study(name)
    assert world.study(study).state == StudyState.DONE, world.study(study).reason
    jobs = world.jobs(study)
    assert len(jobs) == BOUGHT
    assert len({job.prompt_id for job in jobs}) == BOUGHT
    assert all(child.restarts == 0 for child in running.supervisor.children)


@pytest.mark.parametrize("name", SEARCHING)
def test_a_search_with_each_policy_through_real_workers(running: Running, name: str) -> None:
    world, study = running.world, running.search(name)
    assert world.study(study).state == StudyState.DONE, world.study(study).reason
    jobs = world.jobs(study)
    assert 0 < len(jobs) <= CONTENDERS * BOUGHT
    assert len({(job.method_id, job.prompt_id) for job in jobs}) == len(jobs)
    assert all(child.restarts == 0 for child in running.supervisor.children)
