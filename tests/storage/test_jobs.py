from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError
from sqlmodel import select

from storage import jobs
from storage.database import Database
from storage.tables import Job, JobState
from tests.storage.example import Example, small_benchmark

MINUTE = timedelta(minutes=1)


@pytest.fixture
def example(db: Database) -> Example:
    return small_benchmark(db)


@pytest.fixture
def job_ids(db: Database, example: Example) -> list[int]:
    with db.begin() as session:
        return jobs.add(session, example.study_id, 1, example.new_jobs(6))


def states(db: Database) -> list[str]:
    with db.read() as session:
        return [job.state for job in session.exec(select(Job).order_by(Job.id)).all()]


def claim(db: Database, ids: list[int], owner: str, lease: timedelta = MINUTE) -> set[int]:
    with db.begin() as session:
        return {job.id or 0 for job in jobs.claim(session, ids, owner, lease)}


def test_ids_come_back_in_the_order_of_the_cells(db: Database, example: Example, job_ids: list[int]):
    with db.read() as session:
        found = {job.id: job.prompt_id for job in session.exec(select(Job)).all()}
    assert [found[i] for i in job_ids] == example.prompt_ids[:6]


def test_a_job_is_leased_to_one_owner(db: Database, job_ids: list[int]):
    assert claim(db, job_ids[:4], "a") == set(job_ids[:4])
    assert claim(db, job_ids, "b") == set(job_ids[4:])
    assert claim(db, job_ids, "a") == set()


def test_owners_at_once_get_disjoint_jobs(db: Database, job_ids: list[int]):
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda owner: claim(db, job_ids, owner), "abcd"))
    assert sum(len(part) for part in won) == 6
    assert set().union(*won) == set(job_ids)


def test_a_job_is_finished_once_whoever_brings_the_answer(db: Database, job_ids: list[int]):
    claim(db, job_ids[:2], "a", lease=-MINUTE)
    with db.begin() as session:
        assert jobs.finish(session, job_ids[:3]) == set(job_ids[:3])
    with db.begin() as session:
        assert jobs.finish(session, job_ids[:4]) == {job_ids[3]}
    assert states(db)[:4] == [JobState.DONE] * 4


def test_an_ended_lease_is_found_and_put_back(db: Database, job_ids: list[int]):
    claim(db, job_ids[:1], "dead", lease=-MINUTE)
    claim(db, job_ids[1:2], "alive")
    with db.begin() as session:
        assert [job.id for job in jobs.expired(session)] == job_ids[:1]
        assert jobs.requeue(session, job_ids[0], "lease ended")
        assert not jobs.requeue(session, job_ids[0], "again")
    assert claim(db, job_ids[:2], "next") == {job_ids[0]}


def test_a_renewed_lease_is_not_ended(db: Database, job_ids: list[int]):
    claim(db, job_ids[:2], "a", lease=-MINUTE)
    with db.begin() as session:
        assert jobs.renew(session, job_ids, "a", MINUTE) == 2
        assert jobs.renew(session, job_ids, "b", MINUTE) == 0
        assert jobs.expired(session) == []


def test_a_delayed_job_waits(db: Database, job_ids: list[int]):
    claim(db, job_ids[:1], "a")
    with db.begin() as session:
        jobs.requeue(session, job_ids[0], "429", delay=MINUTE)
    assert claim(db, job_ids[:1], "b") == set()


def test_a_parked_job_is_closed_and_says_why(db: Database, job_ids: list[int]):
    claim(db, job_ids[:1], "a")
    with db.begin() as session:
        assert jobs.park(session, job_ids[0], "x" * 5000)
        assert not jobs.park(session, job_ids[0], "again")
        assert jobs.finish(session, job_ids[:1]) == set()
    assert claim(db, job_ids[:1], "b") == set()
    with db.read() as session:
        assert session.get_one(Job, job_ids[0]).reason == "x" * 2000


def test_a_cell_has_one_open_job(db: Database, example: Example, job_ids: list[int]):
    with pytest.raises(IntegrityError), db.begin() as session:
        jobs.add(session, example.study_id, 2, example.new_jobs(7))
    assert len(states(db)) == 6
    with db.begin() as session:
        jobs.finish(session, job_ids)
    with db.begin() as session:
        assert len(jobs.add(session, example.study_id, 2, example.new_jobs(1))) == 1


def test_open_cells_are_those_of_any_study(db: Database, example: Example, job_ids: list[int]):
    with db.begin() as session:
        jobs.finish(session, job_ids[:5])
    with db.read() as session:
        cells = jobs.open_cells(session, example.method_ids)
        assert cells == {(example.method_ids[0], example.prompt_ids[5], example.scorer_id)}
        assert jobs.count_open(session, example.study_id) == 1


def test_a_lost_message_is_sent_again_once_per_period(db: Database, job_ids: list[int]):
    claim(db, job_ids[:4], "a")
    with db.begin() as session:
        assert jobs.undispatched(session, MINUTE) == []
        assert jobs.undispatched(session, -MINUTE) == [(i, "inference") for i in job_ids[4:]]
        assert jobs.undispatched(session, timedelta(seconds=1)) == []
