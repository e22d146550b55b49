from __future__ import annotations

from itertools import product

import pytest
from sqlalchemy import text

from assay.errors import UsageError
from storage import events, studies
from storage.database import Database
from storage.studies import StudyRequest
from storage.tables import StudyState
from tests.storage.example import small_benchmark

# Written out, so that a change of the table in the code is a change here too.
MAY_FOLLOW = {
    "waiting": {"running", "paused", "cancelled", "failed"},
    "running": {"done", "paused", "cancelled", "failed", "waiting"},
    "paused": {"running", "waiting", "cancelled"},
    "done": set(),
    "cancelled": set(),
    "failed": {"waiting", "cancelled"},
}
FINAL = {"done", "cancelled", "failed"}


def test_every_pair_of_states(db: Database):
    study_id = small_benchmark(db).study_id
    for before, after in product(StudyState, StudyState):
        with db.begin() as session:
            session.connection().execute(text("UPDATE study SET state = :s, reason = ''"), {"s": str(before)})
        allowed = before == after or after in MAY_FOLLOW[before]
        with db.begin() as session:
            if allowed:
                studies.move(session, study_id, after)
            else:
                with pytest.raises(UsageError, match=f"is {before} and cannot become {after}"):
                    studies.move(session, study_id, after)
        with db.read() as session:
            study = studies.find(session, study_id)
            assert study.state == (after if allowed else before)
            if allowed and before != after:
                assert (study.finished_at is not None) == (after in FINAL)
                kind = "study.finished" if after == StudyState.DONE else f"study.{after}"
                assert events.recent(session, 1)[0].kind == kind


def test_the_same_state_again_says_nothing(db: Database):
    study_id = small_benchmark(db).study_id
    for _ in range(2):
        with db.begin() as session:
            studies.move(session, study_id, StudyState.RUNNING, "started")
    with db.read() as session:
        assert [e.kind for e in events.recent(session)].count("study.running") == 1


def test_a_trigger_creates_its_study_once(db: Database):
    example = small_benchmark(db)
    request = StudyRequest(
        example.benchmark_id, example.method_ids, "uniform", "aggregate", caps={"usd": 5}, trigger="event:1"
    )
    with db.begin() as session:
        study = studies.create(session, request)
        assert study is not None
        study_id = study.id or 0
        assert studies.create(session, request) is None
    with db.read() as session:
        assert [method.id for method in studies.methods_of(session, study_id)] == example.method_ids
        assert studies.unfinished(session) == [example.study_id, study_id]


def test_a_step_is_taken_by_one_agent(db: Database):
    study_id = small_benchmark(db).study_id
    with db.begin() as session:
        assert studies.take_step(session, study_id, 0)
        assert not studies.take_step(session, study_id, 0)
        assert studies.take_step(session, study_id, 1)
        studies.move(session, study_id, StudyState.PAUSED)
        assert not studies.take_step(session, study_id, 2)


def test_an_unknown_study_is_named(db: Database):
    with db.read() as session, pytest.raises(UsageError, match="there is no study 99"):
        studies.find(session, 99)
