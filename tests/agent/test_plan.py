"""`assay plan`: cost and width before spending, and which policy fits the search for the best."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli import app
from storage import catalog, versions
from tests.world import BENCHMARK, World
from workers.training import train_version

PRICE = {"per_call": 0.001}


def call(world: World, *arguments: str, code: int = 0) -> Any:
    env = {"ASSAY_DATA_DIR": str(world.settings.data_dir), "ASSAY_ESTIMATOR": "linear-gaussian"}
    result = CliRunner().invoke(app, [*arguments, "--json"], env=env)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.output


@pytest.fixture
def priced(world: World) -> World:
    world.add_model("m17", backend="replay", matrix=str(world.matrix), price=PRICE)
    return world


def fit(world: World) -> None:
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        version = versions.want(session, benchmark, "linear-gaussian", {})
    assert train_version(world.worker(), version.id or 0)


def test_costs_are_known_without_history_widths_are_not(priced: World) -> None:
    found = call(priced, "plan", "--benchmark", BENCHMARK, "--model", "m17", "--budgets", "5,10")["m17"]
    assert [step["prompts"] for step in found] == [5, 10, 36]
    assert [step["ceiling_usd"] for step in found] == pytest.approx([0.005, 0.010, 0.036])
    assert all(step["expected_usd"] <= step["ceiling_usd"] for step in found)
    assert all(step["width"] is None for step in found)


def test_intervals_narrow_as_more_is_bought(priced: World) -> None:
    fit(priced)
    found = call(priced, "plan", "--benchmark", BENCHMARK, "--model", "m17", "--budgets", "5,20")["m17"]
    widths = [step["width"] for step in found]
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] == pytest.approx(0.0, abs=1e-6)
    assert priced.jobs() == []  # nothing was bought


def test_advice_on_the_search_for_the_best(world: World) -> None:
    for name in ("m16", "m17", "m18"):
        world.add_model(name)
    names = [part for name in ("m16", "m17", "m18") for part in ("--model", name)]
    first = call(world, "plan", "--benchmark", BENCHMARK, "--objective", "best", *names)
    assert (first["policy"], first["h1"]) == ("ucb-e", None)
    ids = [world.add_model(name) for name in ("m16", "m17", "m18")]
    world.add_study(
        ids[0], method_ids=ids, objective="best", policy="ucb-e", estimator="aggregate", max_prompts=60
    )
    world.settle()
    later = call(world, "plan", "--benchmark", BENCHMARK, "--objective", "best", *names)
    assert later["h1"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--budgets", "many"), "whole numbers"),
        (("--budgets", "0"), "start at 1"),
        (("--objective", "worst"), "unknown objective"),
    ],
)
def test_wrong_use_is_said(priced: World, arguments: tuple[str, ...], says: str) -> None:
    given = ("plan", "--benchmark", BENCHMARK, "--model", "m17", *arguments)
    assert says in call(priced, *given, code=2)


def test_methods_join_and_leave_by_command(world: World) -> None:
    ids = [world.add_model(name) for name in ("m16", "m17")]
    world.add_model("m18")
    study = world.add_study(ids[0], method_ids=ids, objective="best", policy="ucb-e", estimator="aggregate")
    env = {"ASSAY_DATA_DIR": str(world.settings.data_dir)}
    joined = CliRunner().invoke(app, ["study", "join", str(study), "m18"], env=env)
    assert (joined.exit_code, joined.stdout.strip()) == (0, f"1 methods joined study {study}")
    left = CliRunner().invoke(app, ["study", "leave", str(study), "m16"], env=env)
    assert left.exit_code == 0
    world.settle()
    assert {job.method_id for job in world.jobs(study)} <= {ids[1], ids[1] + 1}
