"""Caps of every scope and period: studies pause at them with the reason, and go on when there is room."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli import app
from agent.sweeper import Sweeper
from benchmarks._workload import fill
from benchmarks.endpoint import Behaviour, Fault, serving
from storage import ledger
from storage.tables import JobState, StudyState
from tests.world import World
from workers.execution import run_jobs


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path / "data"))
    opened = World.open(tmp_path).with_history()
    yield opened
    opened.database.close()


def assay(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def failing(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (["overall"], "the overall cap of 7 calls leaves 0 calls"),
        (["benchmark", "trivia"], "the benchmark cap of 7 calls leaves 0 calls"),
        (["study", "1"], "the study cap of 7 calls leaves 0 calls"),
        (["endpoint", "m17"], "the endpoint replay:m17 cap of 7 calls leaves 0 calls"),
    ],
)
def test_a_study_pauses_at_the_cap_and_goes_on_when_it_is_raised(
    world: World, scope: list[str], said: str
) -> None:
    study = world.add_study(world.add_model("m17"))
    assay("budget", "set", *scope, "--calls", 7)
    world.settle()
    paused = world.study(study)
    assert paused.state == StudyState.PAUSED
    assert paused.reason.startswith(f"budget exhausted: {said}")
    assert len(world.acquired()) == 7
    assert world.events("budget.exhausted")
    assay("budget", "set", *scope, "--calls", 100)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 15
    world.check_money()


def test_a_daily_cap_goes_on_the_next_day(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    study = world.add_study(world.add_model("m17"))
    assay("budget", "set", "overall", "--calls", 10, "--per", "day")
    world.settle()
    paused = world.study(study)
    assert (paused.state, len(world.acquired())) == (StudyState.PAUSED, 10)
    assert "it goes on with the next day" in paused.reason
    later = ledger.utc_now() + timedelta(days=1)
    monkeypatch.setattr(ledger, "utc_now", lambda: later)
    monkeypatch.setattr("agent.sweeper.utc_now", lambda: later)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 15
    (budget,) = [b for b in json.loads(assay("budget", "show", "--json")) if b["period"] == "day"]
    assert budget["cap"] == 10


def test_a_study_that_was_paused_by_hand_stays_paused(world: World) -> None:
    study = world.add_study(world.add_model("m17"))
    assay("study", "pause", study)
    assay("budget", "set", "overall", "--calls", 1)
    assay("budget", "set", "overall", "--calls", 100)
    world.settle()
    assert world.study(study).state == StudyState.PAUSED


def test_show_lists_what_is_spent_and_left(world: World) -> None:
    world.add_study(world.add_model("m17"), max_prompts=5)
    assay("budget", "set", "overall", "--usd", 2, "--calls", 100, "--gpu-seconds", 30)
    world.settle()
    shown = {one["unit"]: one for one in json.loads(assay("budget", "show", "--json"))}
    assert (shown["calls"]["spent"], shown["calls"]["left"]) == (5, 95)
    assert (shown["usd"]["cap"], shown["gpu-ms"]["cap"]) == (2_000_000, 30_000)
    assert "30.0 GPU" in assay("budget", "show")
    assert "study 1" in assay("budget", "show", "--all")
    assay("budget", "set", "overall", "--remove")
    assert json.loads(assay("budget", "show", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["planet", "--usd", 1], "unknown scope 'planet'"),
        (["overall"], "nothing to set"),
        (["overall", "--usd", 1, "--per", "fortnight"], "unknown period 'fortnight'"),
        (["benchmark", "--usd", 1], "which benchmark?"),
        (["study", "x", "--usd", 1], "a study is named by its number"),
        (["endpoint", "http://nobody", "--usd", 1], "no model calls the endpoint"),
    ],
)
def test_wrong_use_says_what_to_do(world: World, arguments: list[object], said: str) -> None:
    assert said in failing("budget", "set", *arguments)


def test_jobs_that_were_set_aside_are_listed_shown_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path))
    with serving(Behaviour(fault_rate=1.0, faults=(Fault.EMPTY,))) as endpoint:
        load = fill(tmp_path, endpoint.url, 3)
        world = World(tmp_path, load.settings, load.database)
        run_jobs(world.worker(), load.ids)
        listed = json.loads(assay("jobs", "list", "--json", "--study", 1))
        assert {(one["state"], one["status"]) for one in listed} == {("parked", "empty")}
        assert "3 parked" in assay("jobs", "list")
        shown = json.loads(assay("jobs", "show", listed[0]["id"], "--json"))
        assert [one["reason"] for one in shown["tries"]] == ["empty answer"]
        assert "tokens" in assay("jobs", "show", listed[0]["id"])
        endpoint.behaviour.fault_rate = 0.0
        assert "3 jobs are asked for again" in assay("jobs", "retry", "--study", 1)
        Sweeper(world.agent_context()).sweep()
        world.work()
    assert [job.state for job in world.jobs()] == [JobState.CANCELLED] * 3 + [JobState.DONE] * 3
    assert sum(endpoint.tries.values()) == 6
    world.check_money()
    assert "is not set aside" in failing("jobs", "retry", 1)
    assert "which jobs?" in failing("jobs", "retry")
    assert "there is no job 99" in failing("jobs", "show", 99)
    load.database.close()
