"""A small whole world for tests: a matrix folder, a database, an agent, and workers that run inline.

Jobs that the agent sends are put into a queue; `World.work` runs them in this thread with the real
`run_jobs` and `train_version`, so that a whole study takes a second and needs no broker.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sqlmodel import select

from agent.context import AgentContext
from agent.loop import Agent
from assay.settings import Settings
from assay.specs import ModelSpec
from storage import catalog, ledger, studies
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.tables import Budget, Event, Job, Output, Score, Study
from workers.execution import WorkerContext, run_jobs
from workers.training import train_version

BENCHMARK = "trivia"


def write_matrix(folder: Path, *, models: int = 20, tests: int = 4, prompts: int = 36, seed: int = 5) -> Path:
    """A matrix folder with two datasets; the last `tests` models have split "test"."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    ability, difficulty = rng.normal(0.4, 1.2, (models, 1)), rng.normal(0.0, 1.0, (1, prompts))
    scores = (ability - difficulty + rng.logistic(size=(models, prompts)) > 0).astype(np.int8)
    np.savez(folder / "scores.npz", scores=scores)
    lines = [
        json.dumps(
            {"id": f"p{j}", "dataset": "easy" if j < prompts // 3 else "hard", "text": f"What is {j}?"}
        )
        for j in range(prompts)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    splits = ["train"] * (models - tests) + ["test"] * tests
    rows = [f"m{i},{split}" for i, split in enumerate(splits)]
    (folder / "models.csv").write_text("model,split\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


@dataclass
class World:
    """Database, agent and inline workers in a folder.

    Attributes:
        folder: Where everything lies.
        settings: The configuration of agent and workers.
        database: The database.
        sent: (job ids, delay) of every message to the workers, in order.
        calls_due: Messages that no worker has taken yet.
        fits_due: Versions that no trainer has taken yet.
    """

    folder: Path
    settings: Settings
    database: Database
    sent: list[tuple[list[int], float]] = field(default_factory=list)
    calls_due: deque[tuple[list[int], float]] = field(default_factory=deque)
    fits_due: deque[int] = field(default_factory=deque)
    wakes: int = 0

    @classmethod
    def open(cls, folder: Path, **settings: Any) -> World:
        given: dict[str, Any] = {
            "batch_size": 5,
            "max_prompts": 15,
            "lease_s": 5.0,
            "sweep_s": 0.001,
            "estimator": "linear-gaussian",
            **settings,
        }
        configured = Settings(data_dir=folder / "data", database_url="", broker_url="", **given)
        configured.data_dir.mkdir(parents=True, exist_ok=True)
        database = Database(configured.database)
        database.create_or_check()
        return cls(folder, configured, database)

    @property
    def matrix(self) -> Path:
        return self.folder / "matrix"

    @property
    def truth(self) -> np.ndarray:
        with np.load(self.matrix / "scores.npz") as stored:
            return np.asarray(stored["scores"], dtype=float)

    def with_history(self, **shape: int) -> World:
        """Write a matrix folder and import its train rows as benchmark "trivia"."""
        write_matrix(self.matrix, **shape)
        import_matrix_folder(self.database, self.matrix, BENCHMARK, rows="train")
        return self

    # --- the agent's side ----------------------------------------------------------------------------------

    def agent_context(self) -> AgentContext:
        return AgentContext(self.database, self.settings, self.send_jobs, self.fits_due.append)

    def send_jobs(self, ids: Sequence[int], kind: str = "inference", delay_s: float = 0.0) -> None:
        self.sent.append((list(ids), delay_s))
        self.calls_due.append((list(ids), delay_s))

    def worker(self, owner: str = "worker") -> WorkerContext:
        return WorkerContext(self.database, self.settings, owner, self._wake, self.send_jobs)

    def _wake(self) -> None:
        self.wakes += 1

    def work(self) -> bool:
        """Do everything that was sent; True where there was something."""
        busy = bool(self.calls_due or self.fits_due)
        while self.fits_due:
            train_version(self.worker("trainer"), self.fits_due.popleft())
        while self.calls_due:
            ids, delay_s = self.calls_due.popleft()
            time.sleep(delay_s)
            run_jobs(self.worker(), ids)
        return busy

    def settle(self, agent: Agent | None = None, rounds: int = 200) -> None:
        """Let agent and workers go on until nothing moves any more."""
        agent = agent or Agent(self.agent_context())
        for _ in range(rounds):
            moved = agent.tick()
            worked = self.work()
            if not moved and not worked and not agent.tick():
                return
        raise AssertionError("the world does not come to rest")

    # --- filling and looking -------------------------------------------------------------------------------

    def add_model(self, name: str, *, announce: bool = False, **spec: Any) -> int:
        """Register a model, replaying the matrix folder by default; returns its method's id.

        Where it is announced, the agent makes a study of it by itself.
        """
        if not spec:
            spec = {"backend": "replay", "matrix": str(self.matrix)}
        with self.database.begin() as session:
            model, _ = catalog.add_model(session, ModelSpec(name=name, **spec), announce=announce)
            return int(catalog.default_method(session, model.id or 0).id or 0)

    def add_study(self, method_id: int, *, max_usd: float | None = 1.0, **request: Any) -> int:
        """Create a study of one method on "trivia"."""
        given = {
            "policy": "stratified",
            "estimator": self.settings.estimator,
            "batch_size": self.settings.batch_size,
            "max_prompts": self.settings.max_prompts,
            "caps": {} if max_usd is None else {"usd": round(max_usd * 1e6)},
            **request,
        }
        with self.database.begin() as session:
            benchmark = catalog.find_benchmark(session, BENCHMARK)
            given.setdefault("method_ids", [method_id])
            wanted = studies.StudyRequest(benchmark_id=benchmark.id or 0, **given)
            study = studies.create(session, wanted)
            assert study is not None
            return int(study.id or 0)

    def study(self, study_id: int) -> Study:
        with self.database.read() as session:
            return studies.find(session, study_id)

    def studies(self) -> list[Study]:
        return self.rows(Study)

    def jobs(self, study_id: int | None = None) -> list[Job]:
        found = self.rows(Job)
        return [job for job in found if study_id is None or job.study_id == study_id]

    def job_ids(self, study_id: int | None = None) -> list[int]:
        return [int(job.id or 0) for job in self.jobs(study_id)]

    def outputs(self) -> list[Output]:
        return self.rows(Output)

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.rows(Event) if event.kind == kind]

    def acquired(self) -> list[Score]:
        with self.database.read() as session:
            return list(session.exec(select(Score).where(Score.origin == "acquired")).all())

    def budget(self, study_id: int) -> Budget:
        with self.database.read() as session:
            return ledger.budgets_of(session, [("study", study_id)])[0]

    def rows(self, table: Any, order: Any = None) -> list[Any]:
        with self.database.read() as session:
            return list(session.exec(select(table).order_by(table.id if order is None else order)).all())

    def check_money(self) -> None:
        """What must hold of every budget at rest: nothing reserved, spent = sum of settled, within cap."""
        with self.database.read() as session:
            for budget in session.exec(select(Budget)).all():
                assert budget.reserved == 0
                assert budget.spent == ledger.spent_by_job(session, budget.id or 0)
                assert budget.spent <= budget.cap

    @contextmanager
    def locked(self) -> Iterator[sqlite3.Connection]:
        """Hold the database's write lock, as another program would."""
        other = sqlite3.connect(self.settings.data_dir / "assay.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            yield other
            if other.in_transaction:
                other.execute("ROLLBACK")
        finally:
            other.close()
