"""What died or came too late: leases, late answers, lost messages, other studies' reservations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from sqlmodel import Session, select

from agent import advance as advancing
from agent import loop, rules
from agent.advance import advance
from agent.context import AgentContext
from agent.loop import Agent
from agent.sweeper import Sweeper
from agent.watchers import model_folder
from assay.errors import BadInputError, StorageError
from assay.settings import Settings
from assay.specs import ModelSpec, Price
from storage import catalog, events, jobs, ledger, studies, versions
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.ledger import Charge
from storage.studies import StudyRequest
from storage.tables import (
    Budget,
    EstimatorVersion,
    Event,
    Job,
    JobState,
    LedgerEntry,
    Model,
    Prompt,
    Study,
    StudyState,
    Template,
    VersionState,
)
from workers import execution
from workers.backends import Answer
from workers.execution import WorkerContext, run_jobs
from workers.outcomes import Outcome, store
from workers.prices import Bill
from workers.training import train_version
from workers.work import load_work, render

LEASE = timedelta(seconds=30)
OVER = timedelta(seconds=-1)
PRICE = Price(per_call=0.01)  # 10,000 micro-dollars


@dataclass
class World:
    """A small benchmark, one replayed model, and an agent whose messages are caught."""

    database: Database
    settings: Settings
    folder: Path
    sent: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    @property
    def agent(self) -> AgentContext:
        return AgentContext(
            self.database, self.settings, lambda ids, _kind: self.sent.extend(ids), self.wanted.append
        )

    def worker(self, name: str) -> WorkerContext:
        return WorkerContext(self.database, self.settings, name, lambda: None, lambda *_: None)

    def study(self, *, batch: int = 2, estimator: str = "aggregate") -> int:
        with self.database.begin() as session:
            request = StudyRequest(
                benchmark_id=1,
                method_ids=[catalog.find_method(session, "live").id or 0],
                policy="stratified",
                estimator=estimator,
                batch_size=batch,
                max_prompts=8,
                caps={"usd": 1_000_000},
            )
            study = studies.create(session, request)
            assert study is not None
            assert study.id is not None
            return study.id

    def bought(self, *, batch: int = 2) -> tuple[int, list[int]]:
        """A study that has bought its first batch: its number and its jobs."""
        study_id = self.study(batch=batch)
        self.fit(study_id)
        assert advance(self.agent, study_id)
        return study_id, list(self.sent)

    def fit(self, study_id: int) -> None:
        advance(self.agent, study_id)
        for version_id in self.wanted:
            assert train_version(self.worker("trainer"), version_id)
        self.wanted.clear()

    def claim(self, ids: Sequence[int], owner: str, lease: timedelta = LEASE) -> list[Job]:
        with self.database.begin() as session:
            return jobs.claim(session, ids, owner, lease)

    def all(self, table: type) -> list:
        with self.database.read() as session:
            return list(session.exec(select(table)).all())

    def study_state(self, study_id: int) -> tuple[str, str]:
        study = next(study for study in self.all(Study) if study.id == study_id)
        return study.state, study.reason


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "matrix"
    folder.mkdir()
    scores = np.random.default_rng(1).integers(0, 2, (6, 12)).astype(np.int8)
    np.savez(folder / "scores.npz", scores=scores)
    prompts = [{"id": f"p{j}", "dataset": f"d{j % 2}", "text": f"question {j}"} for j in range(12)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)) + "\n")
    (folder / "models.csv").write_text("model\n" + "\n".join(f"m{i}" for i in range(6)) + "\n")
    settings = Settings(data_dir=tmp_path, database_url="", broker_url="", max_attempts=2, redispatch_s=0.001)
    database = Database(settings.database)
    database.upgrade()
    import_matrix_folder(database, folder, "small")
    with database.begin() as session:
        spec = ModelSpec(name="live", backend="replay", matrix=str(folder), row="m0", price=PRICE)
        catalog.add_model(session, spec, announce=False)
    yield World(database, settings, folder)
    database.close()


def outcomes_of(world: World, claimed: list[Job]) -> list[Outcome]:
    with world.database.read() as session:
        return [Outcome(work) for work in load_work(session, claimed)]


def expire(world: World, claimed: list[Job]) -> None:
    with world.database.begin() as session:
        jobs.renew(session, [job.id or 0 for job in claimed], "first", OVER)


# --- jobs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [{"retry": "timeout"}, {"parked": "status 400"}])
def test_a_worker_that_lost_its_lease_cannot_take_the_job_from_the_next(
    world: World, failure: dict[str, str]
) -> None:
    _, ids = world.bought()
    first = world.claim(ids, "first", OVER)
    late = [replace(outcome, **failure) for outcome in outcomes_of(world, first)]
    Sweeper(world.agent).sweep()
    second = world.claim(ids, "second")
    assert len(second) == len(ids)
    assert store(world.database, late, "first") == []
    assert {job.lease_owner for job in world.all(Job)} == {"second"}
    answered = [
        replace(outcome, score=1.0, answer=Answer("a", score=1.0), bill=Bill(Charge(usd=7), {}))
        for outcome in outcomes_of(world, second)
    ]
    store(world.database, answered, "second")
    assert {job.state for job in world.all(Job)} == {JobState.DONE}
    assert [entry.settled for entry in world.all(LedgerEntry)] == [7] * len(ids)
    budget = world.all(Budget)[0]
    assert (budget.reserved, budget.spent) == (0, 7 * len(ids))


def test_an_answer_counts_also_after_its_lease_ended_and_only_once(world: World) -> None:
    _, ids = world.bought()
    first = outcomes_of(world, world.claim(ids, "first", OVER))
    Sweeper(world.agent).sweep()
    second = outcomes_of(world, world.claim(ids, "second"))
    for owner, outcomes in (("first", first), ("second", second)):
        answered = [replace(outcome, score=0.0, bill=Bill(Charge(usd=5), {})) for outcome in outcomes]
        store(world.database, answered, owner)
    assert [entry.settled for entry in world.all(LedgerEntry)] == [5] * len(ids)
    assert sum(event.kind == "jobs.finished" for event in world.all(Event)) == 1


def test_a_lease_renewed_since_it_was_read_is_left_alone(world: World) -> None:
    _, ids = world.bought()
    world.claim(ids, "first")
    with world.database.begin() as session:
        assert not jobs.requeue(session, ids[0], "silent", expired=True)
        assert not jobs.park(session, ids[0], "silent", expired=True)


def test_a_job_whose_workers_all_died_is_booked_at_its_worst(world: World) -> None:
    study_id, ids = world.bought()
    for name in ("first", "second"):  # max_attempts is 2
        assert world.claim(ids, name, OVER)
        Sweeper(world.agent).sweep()
    assert {job.state for job in world.all(Job)} == {JobState.PARKED}
    budget = world.all(Budget)[0]
    assert (budget.reserved, budget.spent) == (0, 10_000 * len(ids))
    assert advance(world.agent, study_id)  # goes on with other prompts
    assert len(world.all(Job)) > len(ids)


def test_jobs_stored_but_never_sent_are_sent_by_the_sweeper(world: World) -> None:
    study_id = world.study()
    world.fit(study_id)
    silent = AgentContext(world.database, world.settings, lambda *_: None, lambda _: None)
    assert advance(silent, study_id)  # killed between commit and send
    Sweeper(world.agent).sweep()
    assert sorted(world.sent) == sorted(job.id for job in world.all(Job))


def test_a_scorer_that_fails_costs_its_job_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def score(self, answer: Answer, fields: dict) -> float:
            if fields.get("target") is None and answer.score == 0.0:
                raise RuntimeError("no idea")
            return 1.5

    monkeypatch.setattr(execution.SCORERS, "get", lambda _name: Broken)
    _, ids = world.bought(batch=8)
    assert run_jobs(world.worker("one"), ids) == len(ids)
    assert {job.state for job in world.all(Job)} == {JobState.PARKED}
    assert any("outside [0, 1]" in job.reason for job in world.all(Job))
    budget = world.all(Budget)[0]
    assert (budget.reserved, budget.spent) == (0, 10_000 * len(ids))


def test_a_template_without_its_field_is_said_so() -> None:
    with pytest.raises(BadInputError, match="names the field 'hint'"):
        render(
            Template(name="hinted", text="{text} {hint}"),
            Prompt(key="p", text="t", dataset_id=1, content_hash=""),
        )


# --- studies -----------------------------------------------------------------------------------------------


def test_a_busy_database_pauses_no_study(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    study_id = world.study()
    world.fit(study_id)
    before = world.study_state(study_id)

    def locked(*_: object) -> bool:
        raise StorageError("is locked")

    monkeypatch.setattr(advancing, "_step", locked)
    with pytest.raises(StorageError):
        advance(world.agent, study_id)
    assert world.study_state(study_id) == before


def test_an_unexpected_error_pauses_its_study_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_id = world.study()
    world.fit(study_id)

    def broken(*_: object) -> bool:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(advancing, "read_situation", broken)
    assert advance(world.agent, study_id)
    assert world.study_state(study_id) == (StudyState.PAUSED, "unexpected ZeroDivisionError: oops")


def test_others_reservations_are_waited_for_and_others_spending_is_not(world: World) -> None:
    with world.database.begin() as session:
        ledger.set_cap(session, "overall", 0, "calls", 3)
    first, ids = world.bought(batch=3)
    second = world.study()
    assert not advance(world.agent, second)
    assert world.study_state(second)[0] == StudyState.WAITING
    run_jobs(world.worker("one"), ids)
    assert advance(world.agent, second)
    state, reason = world.study_state(second)
    assert state == StudyState.PAUSED
    assert reason.startswith("budget exhausted: the overall cap")
    assert world.study_state(first)[0] == StudyState.RUNNING


def test_a_study_waits_for_cells_that_another_is_buying(world: World) -> None:
    _, ids = world.bought(batch=8)
    with world.database.begin() as session:
        study = studies.find(session, world_study(session))
        study.max_prompts, study.batch_size = 12, 12
        session.add(study)
    second = world.study(batch=8)
    assert advance(world.agent, second)  # buys the four that are left
    third = world.study(batch=8)
    assert not advance(world.agent, third)
    assert world.study_state(third)[0] == StudyState.WAITING
    run_jobs(world.worker("one"), [*ids, *world.sent])
    assert advance(world.agent, third)
    assert world.study_state(third)[0] == StudyState.DONE


def world_study(session: Session) -> int:
    return session.exec(select(Study.id)).one() or 0


def test_a_pause_by_hand_is_not_undone_by_a_missing_estimator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_id = world.study()

    def paused_meanwhile(session: Session, study: Study) -> None:
        with world.database.begin() as writing:
            studies.move(writing, study_id, StudyState.PAUSED, "by hand")

    monkeypatch.setattr(advancing, "_ready_version", paused_meanwhile)
    assert not advance(world.agent, study_id)
    assert world.study_state(study_id) == (StudyState.PAUSED, "by hand")
    assert world.wanted == []


# --- events and files --------------------------------------------------------------------------------------


def test_an_event_whose_rule_breaks_is_set_aside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> set[int]:
        raise KeyError("study_id")

    monkeypatch.setitem(rules.RULES, "study.created", broken)
    monkeypatch.setattr(loop, "advance", lambda *_: False)
    world.study()
    Agent(world.agent).tick()
    event = next(event for event in world.all(Event) if event.kind == "study.created")
    assert event.handled_at is not None
    assert event.error == "unexpected KeyError: 'study_id'"


def test_a_file_met_while_the_database_was_busy_is_taken_later(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "new.toml").write_text('name = "new"\nbackend = "replay"\nmatrix = "x"\nrow = "m1"\n')
    watcher = model_folder(folder)
    watcher.poll(world.database)  # sees it; the next look finds it unchanged

    def locked(*_: object, **__: object) -> None:
        raise StorageError("is locked")

    with monkeypatch.context() as busy:
        busy.setattr(events, "emit", locked)
        busy.setattr(catalog, "add_model", locked)
        with pytest.raises(StorageError):
            watcher.poll(world.database)
    watcher.poll(world.database)
    assert "new" in {model.name for model in world.all(Model)}


# --- fits --------------------------------------------------------------------------------------------------


def wanted_version(world: World) -> int:
    advance(world.agent, world.study(estimator="linear-gaussian"))
    return world.wanted[0]


def claim_fit(world: World, version_id: int, owner: str, lease: timedelta) -> EstimatorVersion | None:
    with world.database.begin() as session:
        return versions.claim_training(session, version_id, owner, lease)


def test_only_the_trainer_that_holds_the_lease_may_fail_a_version(world: World) -> None:
    version_id = wanted_version(world)
    assert claim_fit(world, version_id, "first", OVER) is not None
    assert claim_fit(world, version_id, "second", LEASE) is not None
    with world.database.begin() as session:
        assert not versions.fail(session, version_id, "late", owner="first")
        assert not versions.fail(session, version_id, "not over yet")
    assert world.all(EstimatorVersion)[0].state == VersionState.TRAINING


def test_a_fit_whose_trainers_all_died_is_given_up(world: World) -> None:
    version_id = wanted_version(world)
    sweeper = Sweeper(world.agent)
    for name in ("first", "second"):  # max_attempts is 2
        assert claim_fit(world, version_id, name, OVER) is not None
    sweeper.sweep()
    version = world.all(EstimatorVersion)[0]
    assert (version.state, version.reason) == (VersionState.FAILED, "its trainer stopped answering, 2 times")
    study_id = world.all(Study)[0].id
    assert advance(world.agent, study_id)
    assert world.study_state(study_id)[0] == StudyState.FAILED


def test_a_fit_that_a_busy_database_refused_is_not_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_id = wanted_version(world)

    def locked(*_: object, **__: object) -> bool:
        raise StorageError("is locked")

    with monkeypatch.context() as busy:
        busy.setattr(versions, "complete", locked)
        assert not train_version(world.worker("trainer"), version_id)
    assert world.all(EstimatorVersion)[0].state == VersionState.TRAINING
