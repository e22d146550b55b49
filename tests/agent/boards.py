"""Databases for leaderboard and page tests, filled through storage functions only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sqlmodel import Session, select

from assay.specs import DatasetSpec, ModelSpec, Price, PromptSpec
from storage import catalog, estimates, events, jobs, ledger, scores, studies
from storage.database import Database
from storage.tables import (
    Benchmark,
    Estimate,
    EstimatorVersion,
    Method,
    Origin,
    Prompt,
    StudyState,
    VersionState,
    utc_now,
)


def open_database(folder: Path) -> Database:
    """A fresh SQLite database with all tables."""
    database = Database(f"sqlite:///{folder / 'assay.db'}")
    database.create_or_check()
    return database


@dataclass
class Board:
    """A benchmark being filled; each method's scores and estimates are given by the test."""

    session: Session
    benchmark: Benchmark
    dataset_pks: list[int]
    scorer_pk: int
    prompt_pks: list[list[int]]  # per dataset

    @classmethod
    def create(
        cls, session: Session, name: str = "trivia", sizes: tuple[int, ...] = (20, 20), text: str = "Question"
    ) -> Board:
        benchmark, _ = catalog.add_benchmark(session, name)
        dataset_pks, prompt_pks, scorer_pk = [], [], 0
        for d, size in enumerate(sizes):
            dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name=f"set-{d}"))
            specs = [
                PromptSpec(id=f"p{j}", dataset=dataset.name, text=f"{text} {d}.{j}") for j in range(size)
            ]
            catalog.add_prompts(session, dataset, specs)
            pks = session.exec(select(Prompt.id).where(Prompt.dataset_id == dataset.id)).all()
            dataset_pks.append(int(dataset.id or 0))
            prompt_pks.append(sorted(int(pk or 0) for pk in pks))
            scorer_pk = dataset.scorer_id
        catalog.bump_prompts_revision(session, benchmark)
        return cls(session, benchmark, dataset_pks, scorer_pk, prompt_pks)

    @property
    def n_prompts(self) -> int:
        return sum(map(len, self.prompt_pks))

    def method(self, name: str) -> Method:
        spec = ModelSpec(name=name, backend="replay", price=Price(free=True))
        model, _ = catalog.add_model(self.session, spec)
        return catalog.default_method(self.session, model.id or 0)

    def retire(self, name: str) -> None:
        catalog.find_model(self.session, name).retired_at = utc_now()
        self.session.flush()

    def score(self, method: Method, correct: list[int], asked: list[int] | None = None) -> None:
        """The first `correct[d]` of each dataset's prompts are right; `asked[d]` of them have a score."""
        asked = asked or [len(pks) for pks in self.prompt_pks]
        rows = [
            (self.dataset_pks[d], self.scorer_pk, method.id, pk, float(j < correct[d]), Origin.IMPORTED, None)
            for d, pks in enumerate(self.prompt_pks)
            for j, pk in enumerate(pks[: asked[d]])
        ]
        scores.add_scores(self.session, rows)
        scores.bump_revision(self.session, int(self.benchmark.id or 0))

    def version(self, estimator: str = "linear-gaussian") -> EstimatorVersion:
        version = EstimatorVersion(
            benchmark_id=int(self.benchmark.id or 0), estimator=estimator, state=VersionState.CHAMPION
        )
        self.session.add(version)
        self.session.flush()
        return version

    def study(self, method: Method, *, cap: int = 1_000_000, max_prompts: int = 20) -> int:
        request = studies.StudyRequest(
            benchmark_id=int(self.benchmark.id or 0),
            method_ids=[int(method.id or 0)],
            policy="stratified",
            estimator="linear-gaussian",
            max_prompts=max_prompts,
            caps={"usd": cap},
        )
        study = studies.create(self.session, request)
        assert study is not None
        assert study.id is not None
        return study.id

    def finish(self, study_id: int, reason: str = "bought 20 prompts") -> None:
        studies.move(self.session, study_id, StudyState.RUNNING)
        studies.move(self.session, study_id, StudyState.DONE, reason)

    def buy(self, study_id: int, method: Method, prompts: list[int], cost: int = 1500) -> None:
        """Buy prompts of the first dataset: reserved, answered and settled."""
        new = [
            jobs.NewJob(
                int(method.id or 0), pk, self.scorer_pk, expected_cost=cost, gain=0.01, probability=0.25
            )
            for pk in prompts
        ]
        ids = jobs.add(self.session, study_id, 1, new)
        budgets = ledger.budgets_of(self.session, [("study", study_id)])
        ledger.reserve(self.session, budgets, {i: ledger.Charge(usd=cost) for i in ids})
        ledger.settle(self.session, {i: ledger.Charge(usd=cost - 100) for i in ids[:-1]})
        jobs.finish(self.session, ids[:-1])
        done = [
            (self.dataset_pks[0], self.scorer_pk, method.id, pk, 1.0, Origin.ACQUIRED, i)
            for pk, i in zip(prompts[:-1], ids[:-1], strict=True)
        ]
        scores.add_scores(self.session, done)
        ledger.release(self.session, ids[-1:])
        jobs.park(self.session, ids[-1], "endpoint refused the connection")

    def estimate(
        self,
        study_id: int,
        method: Method,
        score: float,
        std: float,
        *,
        step: int = 1,
        acquired: int = 10,
        kind: str = "predicted",
        version: EstimatorVersion | None = None,
        cost: int = 25_000,
    ) -> None:
        row = Estimate(
            study_id=study_id,
            benchmark_id=int(self.benchmark.id or 0),
            method_id=int(method.id or 0),
            step=step,
            score=score,
            std=std,
            low=max(0.0, score - 1.96 * std),
            high=min(1.0, score + 1.96 * std),
            level=0.95,
            interval_kind=kind,
            acquired=acquired,
            total=self.n_prompts,
            cost=cost,
            version_id=version.id if version else None,
        )
        estimates.add(self.session, [row])


def fill(session: Session) -> Board:
    """Benchmark "trivia": complete, studied, pending, partial and retired methods."""
    board = Board.create(session)
    version = board.version()
    for i, name in enumerate(("amber-70b", "basalt-13b", "cobalt-7b")):
        board.score(board.method(name), [18 - 4 * i, 16 - 4 * i])
    retired = board.method("old-timer")
    board.score(retired, [20, 20])
    board.retire("old-timer")
    board.score(board.method("partial-3b"), [3, 0], [5, 0])
    done = board.method("dune-34b")
    first = board.study(done)
    board.buy(first, done, board.prompt_pks[0][:4])
    for step, std in enumerate((0.1, 0.06, 0.03), start=1):
        board.estimate(first, done, 0.80, std, step=step, acquired=4 * step, version=version)
    board.finish(first)
    running = board.method("ember-9b")
    second = board.study(running)
    studies.move(session, second, StudyState.RUNNING)
    board.estimate(second, running, 0.55, 0.2, acquired=3, kind="sampling")
    board.study(board.method("fjord-1b"))
    events.emit(session, "rule.failed", {"why": "no price"})
    failed = events.recent(session, 1)[0]
    events.mark_failed(session, int(failed.id or 0), "no price is known for model fjord-1b")
    return board


def random_board(session: Session, methods: int, *, seed: int = 0) -> Board:
    """A benchmark with that many studied methods, for renderers and paging."""
    rng = np.random.default_rng(seed)
    board = Board.create(session, "large", (50,))
    study = board.study(board.method("first"))
    for i in range(methods):
        method = board.method(f"model-{i:04d}")
        board.estimate(study, method, float(rng.uniform(0.2, 0.9)), 0.02)
    return board
