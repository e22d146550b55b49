"""The objective "best" in live studies: cells are bought across all methods, and a winner is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.commands.study import describe
from agent.objectives import OBJECTIVES
from assay.errors import UsageError
from policies import POLICIES
from storage import studies
from storage.tables import Job, StudyState
from tests.world import World

CONTENDERS = 12


@pytest.fixture
def contest(tmp_path: Path) -> World:
    """Ten methods with history, twelve contenders without."""
    world = World.open(tmp_path, batch_size=12)
    return world.with_history(models=10 + CONTENDERS, tests=CONTENDERS, prompts=90)


def enter(world: World, **request: object) -> int:
    ids = [world.add_model(f"m{i}") for i in range(10, 10 + CONTENDERS)]
    given = {"policy": "ucb-e", "estimator": "aggregate", "max_prompts": 200, **request}
    return world.add_study(ids[0], method_ids=ids, objective="best", **given)


def best_contender(world: World) -> str:
    dataset = np.arange(90) >= 30
    scores = world.truth[10:]
    means = (scores[:, ~dataset].mean(axis=1) + scores[:, dataset].mean(axis=1)) / 2
    return f"m{10 + int(means.argmax())}"


def shown(world: World, study: int) -> dict[str, object]:
    with world.database.read() as session:
        return describe(session, study)


@pytest.mark.parametrize("policy", ["ucb-e", "ucb-e-lrf", "row-mean", "filled-subset"])
def test_every_best_arm_policy_runs_live(contest: World, policy: str) -> None:
    study = enter(contest, policy=policy, max_prompts=60)
    contest.settle()
    found = shown(contest, study)
    assert found["state"] == StudyState.DONE
    assert len(contest.acquired()) == 60
    chances = [e["probability_best"] for e in found["estimates"]]  # type: ignore[attr-defined]
    assert sum(chances) == pytest.approx(1.0)


def test_names_the_best_and_buys_most_of_it(contest: World) -> None:
    study = enter(contest, max_prompts=600)
    contest.settle()
    found = shown(contest, study)
    assert found["winner"] == best_contender(contest)
    bought = {e["method"]: e["acquired"] for e in found["estimates"]}  # type: ignore[attr-defined]
    assert bought[str(found["winner"])] > np.median(list(bought.values()))
    assert 0.0 <= float(found["simple_regret"]) < 0.05  # type: ignore[arg-type]


def test_top_two_learns_from_the_history(contest: World) -> None:
    study = enter(contest, policy="top-two", estimator="linear-gaussian", max_prompts=120)
    contest.settle()
    assert shown(contest, study)["state"] == StudyState.DONE


def test_stops_at_the_confidence_asked_for(contest: World) -> None:
    study = enter(contest, max_prompts=1000, until_confidence=0.6)
    contest.settle()
    done = contest.study(study)
    assert done.state == StudyState.DONE
    assert "is the best with probability" in done.reason
    assert len(contest.acquired()) < 1000


def test_methods_join_and_leave_a_running_study(contest: World) -> None:
    study = enter(contest, max_prompts=400)
    agent_ticks = 3
    from agent.loop import Agent

    agent = Agent(contest.agent_context())
    for _ in range(agent_ticks):
        agent.tick()
        contest.work()
    first = contest.study(study)
    assert first.state == StudyState.RUNNING
    with contest.database.begin() as session:
        gone = studies.methods_of(session, study)[0]
        assert studies.leave(session, study, gone.id or 0)
        assert not studies.leave(session, study, gone.id or 0)
    bought = sum(1 for job in contest.jobs(study) if job.method_id == gone.id)
    contest.settle(agent)
    assert contest.study(study).state == StudyState.DONE
    later = [job for job in contest.rows(Job) if job.method_id == gone.id]
    assert len(later) == bought  # nothing more was bought for it
    with contest.database.begin() as session, pytest.raises(UsageError, match="is done"):
        studies.join(session, study, gone.id or 0)


@pytest.mark.parametrize(("policy", "count"), [("uniform", 3), ("ucb-e", 1)])
def test_refuses_what_cannot_find_the_best(policy: str, count: int) -> None:
    with pytest.raises(UsageError):
        OBJECTIVES.get("best")().check(POLICIES.get(policy), count)
