"""A study replayed live, through the agent and real workers, acquires and reports what a backtest does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from sqlmodel import Session, col, select

from agent.advance import advance
from agent.backtest import BacktestSettings, build_splits, replay
from agent.context import AgentContext
from assay.settings import Settings
from assay.specs import ModelSpec, Price
from estimators import make_estimator
from policies import make_policy
from storage import catalog, estimates, studies
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.tables import Job, Prompt, StudyState
from tests.agent.backtest.conftest import write_matrix
from workers.execution import WorkerContext, run_jobs
from workers.training import train_version

BUDGET, BATCH, SEED = 11, 4, 3
POLICIES = (
    "uniform",
    "stratified",
    "cluster-score",
    "cluster-irt",
    "combinatorial",
    "uncertainty",
    "information-gain",
    "static-design",
    "expected-variance-reduction",
)


class Site:
    """A database with the history of a matrix folder, and an agent whose workers run at once."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        self.settings = Settings(data_dir=data, database_url="", broker_url="", validation_share=0.0)
        data.mkdir()
        self.database = Database(self.settings.database)
        self.database.create_or_check()
        import_matrix_folder(self.database, folder, "small", rows="train")
        self.worker = WorkerContext(self.database, self.settings, "worker", lambda: None, _never)
        self.agent = AgentContext(self.database, self.settings, self._run, self._train)

    def _run(self, ids: Sequence[int], kind: str) -> None:
        run_jobs(self.worker, ids)

    def _train(self, version_id: int) -> None:
        train_version(self.worker, version_id)

    def study(self, model: str, policy: str, estimator: str) -> int:
        """A study of a model that answers from the matrix folder, followed to its end."""
        spec = ModelSpec(name=model, backend="replay", matrix=str(self.folder), price=Price(free=True))
        with self.database.begin() as session:
            registered, _ = catalog.add_model(session, spec)
            method = catalog.default_method(session, registered.id or 0)
            benchmark = catalog.find_benchmark(session, "small")
            study = studies.create(
                session,
                studies.StudyRequest(
                    benchmark_id=benchmark.id or 0,
                    method_ids=[method.id or 0],
                    policy=policy,
                    estimator=estimator,
                    seed=SEED,
                    batch_size=BATCH,
                    max_prompts=BUDGET,
                    caps={"usd": 1_000_000},
                ),
            )
            assert study is not None
            study_id = study.id or 0
        for _ in range(20):
            advance(self.agent, study_id)
            with self.database.read() as session:
                if studies.find(session, study_id).state not in (StudyState.WAITING, StudyState.RUNNING):
                    return study_id
        raise AssertionError("the study did not come to its end")

    def acquired(self, session: Session, study_id: int) -> list[list[str]]:
        """Prompts asked for, a sorted list per step."""
        query = (
            select(Job.step, Prompt.key)
            .join(Prompt, col(Prompt.id) == col(Job.prompt_id))
            .where(Job.study_id == study_id)
        )
        steps: dict[int, list[str]] = {}
        for step, key in session.exec(query).all():
            steps.setdefault(step, []).append(key)
        return [sorted(keys) for _, keys in sorted(steps.items())]


def _never(ids: Sequence[int], kind: str, delay: float) -> None:
    raise AssertionError("nothing is tried again in this test")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("live")
    site = Site(write_matrix(root / "matrix", n_models=40), root / "data")
    yield site
    site.database.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_live_study_and_backtest_agree(site: Site, policy: str) -> None:
    split = build_splits(BacktestSettings(str(site.folder)))[0]
    model = split.test.method_ids[POLICIES.index(policy)]  # scores are bought once: a model for each study
    study_id = site.study(model, policy, "linear-gaussian")
    estimator = make_estimator("linear-gaussian").fit(split.history)
    chooser = make_policy(policy, seed=SEED)
    chooser.prepare(split.history, estimator)
    row = split.test.method_ids.index(model)
    test = split.test.rows([row])
    ((_, state),) = replay(test, chooser, estimator, budgets=[BUDGET], batch=BATCH, seed=SEED)
    keys = [test.prompt_ids[j] for j in state.order[0]]
    expected = [sorted(keys[i : i + BATCH]) for i in range(0, BUDGET, BATCH)]
    score = estimator.benchmark_score(state.observed)
    with site.database.read() as session:
        assert studies.find(session, study_id).state == StudyState.DONE
        assert site.acquired(session, study_id) == expected
        final = estimates.history(session, study_id)[-1]
    np.testing.assert_allclose([final.score, final.std], [score.mean[0], score.std[0]], rtol=1e-5)
