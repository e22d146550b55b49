"""What died comes back: jobs of dead workers, lost messages, fits that nobody does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agent.advance import advance
from agent.loop import Agent
from agent.sweeper import Sweeper
from storage import jobs, versions
from storage.tables import EstimatorVersion, JobState, StudyState, VersionState
from tests.world import World


@pytest.fixture
def study(world: World) -> int:
    """A running study with five queued jobs, whose message nobody has taken."""
    study = world.add_study(world.add_model("m17"))
    context = world.agent_context()
    advance(context, study)
    world.work()
    advance(context, study)
    world.sent.clear()
    world.calls_due.clear()
    return study


def die(world: World, tries: int = 1) -> None:
    """Have a worker claim all jobs and die, as often as told."""
    ids = world.job_ids()
    for _ in range(tries):
        with world.database.begin() as session:
            claimed = jobs.claim(session, ids, "dead", timedelta(seconds=-1))
            if _ < tries - 1:
                for job in claimed:
                    jobs.requeue(session, job.id or 0, "")


def test_jobs_of_a_dead_worker_are_sent_again(world: World, study: int) -> None:
    die(world)
    Sweeper(world.agent_context()).sweep()
    assert {job.state for job in world.jobs()} == {JobState.QUEUED}
    assert {job.reason for job in world.jobs()} == {"its worker stopped answering"}
    assert [ids for ids, _ in world.sent] == [world.job_ids()]
    world.settle()
    assert world.study(study).state == StudyState.DONE
    world.check_money()


def test_jobs_that_kill_every_worker_are_parked_and_the_study_goes_on(world: World, study: int) -> None:
    die(world, tries=world.settings.max_attempts)
    Sweeper(world.agent_context()).sweep()
    assert {job.state for job in world.jobs()} == {JobState.PARKED}
    assert {job.reason for job in world.jobs()} == {"its worker stopped answering, 5 times"}
    assert world.budget(study).reserved == 0
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 10


def test_a_lease_that_still_runs_is_left_alone(world: World, study: int) -> None:
    with world.database.begin() as session:
        jobs.claim(session, world.job_ids(), "alive", timedelta(seconds=60))
    Sweeper(world.agent_context()).sweep()
    assert {job.state for job in world.jobs()} == {JobState.LEASED}
    assert world.sent == []


def test_a_lost_message_is_sent_again_once_in_a_while(world: World, study: int) -> None:
    sweeper = Sweeper(world.agent_context())
    sweeper.sweep()
    assert world.sent == []  # it may still be on its way
    world.settings.redispatch_s = 0.0001
    sweeper.sweep()
    assert [ids for ids, _ in world.sent] == [world.job_ids()]
    world.settings.redispatch_s = 30.0
    sweeper.sweep()
    assert len(world.sent) == 1


def test_messages_carry_so_many_jobs_at_most(world: World, study: int) -> None:
    world.settings.redispatch_s, world.settings.jobs_per_task = 0.0001, 2
    Sweeper(world.agent_context()).sweep()
    assert [len(ids) for ids, _ in world.sent] == [2, 2, 1]


def test_a_fit_that_nobody_does_is_sent_again(world: World) -> None:
    study = world.add_study(world.add_model("m17"))
    advance(world.agent_context(), study)
    world.fits_due.clear()  # the message is lost
    with world.database.begin() as session:
        versions.claim_training(session, 1, "dead", timedelta(seconds=-1))
    sweeper = Sweeper(world.agent_context())
    sweeper.sweep()
    sweeper.sweep()
    assert list(world.fits_due) == [1]
    world.settle()
    assert world.study(study).state == StudyState.DONE


def test_a_fit_that_kills_every_trainer_fails_its_study(world: World) -> None:
    study = world.add_study(world.add_model("m17"))
    advance(world.agent_context(), study)
    world.fits_due.clear()
    for _ in range(world.settings.max_attempts):
        with world.database.begin() as session:
            versions.claim_training(session, 1, "dead", timedelta(seconds=-1))
    world.settle()
    assert [version.state for version in world.rows(EstimatorVersion)] == [VersionState.FAILED]
    assert world.study(study).state == StudyState.FAILED
    assert "stopped answering" in world.study(study).reason


def test_a_study_whose_news_was_lost_is_found(world: World, study: int) -> None:
    from workers.execution import run_jobs

    run_jobs(world.worker(), world.job_ids())
    with world.database.begin() as session:
        session.connection().exec_driver_sql("UPDATE event SET handled_at = created_at")
    world.settle(Agent(world.agent_context()))
    assert world.study(study).state == StudyState.DONE
