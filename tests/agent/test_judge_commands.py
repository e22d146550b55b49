"""Naming backends, scorers and judges on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli import app
from storage.tables import Dataset, Prompt, Scorer, StudyState
from tests.world import World
from workers.backends._command import end_programs

#: A judge and a model in one: gives the grade 7 to whatever it is shown.
PROGRAM = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    text = json.dumps({"score": 7}) if "<answer>" in asked["prompt"] else "an answer"
    print(json.dumps({"id": asked["id"], "text": text, "input_tokens": 3, "output_tokens": 1}), flush=True)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World.open(tmp_path, estimator="aggregate", max_prompts=4)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    lines = [json.dumps({"id": f"p{i}", "text": f"Tell me {i}", "target": "x"}) for i in range(4)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    yield opened
    end_programs()
    opened.database.close()


def run(world: World, *arguments: str, code: int = 0) -> str:
    env = {"ASSAY_DATA_DIR": str(world.settings.data_dir)}
    result = CliRunner().invoke(app, [str(one) for one in arguments], env=env)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def add_program(world: World, name: str, *options: str) -> None:
    program = f"{sys.executable} -S {world.folder / 'program.py'}"
    run(world, "model", "add", name, "--command", program, "--free", *options)


def test_a_program_judges_a_program(world: World) -> None:
    add_program(world, "grader", "--judge")
    prompts = str(world.folder / "prompts.jsonl")
    run(world, "benchmark", "create", "talk", "--file", prompts, "--judge", "grader", "--set", "high=8")
    add_program(world, "m")
    world.settle()
    (study,) = world.studies()  # the judge itself is evaluated nowhere
    assert study.state == StudyState.DONE
    assert [score.value for score in world.acquired()] == pytest.approx([6 / 7] * 4)
    (dataset,) = world.rows(Dataset)
    (scorer,) = world.rows(Scorer)
    assert (dataset.score_type, scorer.name, scorer.params["high"]) == ("real", "judge-score", 8)
    assert "command" in run(world, "model", "list")
    assert "4 of at most 4, 0 set aside" in run(world, "study", "show", "1")  # a cell is bought once


def test_prompts_are_scored_anew_under_another_name(world: World) -> None:
    add_program(world, "grader", "--judge")
    prompts = str(world.folder / "prompts.jsonl")
    run(world, "benchmark", "create", "talk", "--file", prompts, "--scorer", "f1")
    run(
        world,
        "benchmark",
        "create",
        "graded",
        "--like",
        "talk",
        "--judge",
        "grader",
        "--rubric",
        "Is it kind?",
    )
    hashes = [prompt.content_hash for prompt in world.rows(Prompt)]
    assert hashes[:4] == hashes[4:]
    add_program(world, "m")
    world.settle()
    assert [study.state for study in world.studies()] == [StudyState.DONE] * 2
    answered = [job for job in world.jobs() if job.kind == "inference" and job.bill.get("usd") is not None]
    assert len(answered) == 4  # whichever benchmark came first
    assert len(world.acquired()) == 8


def test_plan_counts_the_verdict(world: World) -> None:
    price = ("--input-price", "1", "--output-price", "2", "--max-tokens", "10")
    endpoint = ("--base-url", "http://127.0.0.1:1/v1")
    run(world, "model", "add", "grader", *endpoint, *price, "--judge")
    prompts = str(world.folder / "prompts.jsonl")
    for name, options in (("plain", ()), ("judged", ("--judge", "grader"))):
        run(world, "benchmark", "create", name, "--file", prompts, *options)
    run(world, "model", "add", "m", *endpoint, *price)
    steps = [
        json.loads(run(world, "plan", "--benchmark", name, "--model", "m", "--budgets", "4", "--json"))["m"][
            -1
        ]
        for name in ("plain", "judged")
    ]
    plain, judged = steps
    assert judged["expected_usd"] > plain["expected_usd"] > 0
    assert judged["ceiling_usd"] > judged["expected_usd"]
    assert judged["ceiling_usd"] > plain["ceiling_usd"]


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (("--base-url", "http://h/v1"), "openai"),
        (("--model", "FOLDER"), "transformers"),
        (("--device", "cpu", "--model", "some/name"), "transformers"),
        (("--command", "cat -u"), "command"),
    ],
)
def test_the_backend_follows_from_the_other_options(
    world: World, options: tuple[str, ...], backend: str
) -> None:
    given = [str(world.folder) if one == "FOLDER" else one for one in options]
    run(world, "model", "add", "m", *given, "--free")
    shown: Any = json.loads(run(world, "model", "show", "m", "--json"))
    assert shown["backend"] == backend


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model", "add", "m", "--backend", "transformers"), "names no weights"),
        (("model", "add", "m", "--backend", "command", "--free"), "names no program"),
        (("benchmark", "create", "b", "--like", "x"), "--like"),
        (("benchmark", "create", "b", "--file", "FILE", "--judge", "nobody"), "nobody"),
        (
            ("benchmark", "create", "b", "--file", "FILE", "--scorer", "judge-scroe"),
            "did you mean 'judge-score'",
        ),
        (("benchmark", "create", "b", "--file", "FILE", "--scorer", "rouge", "--set", "x=1"), "'x'"),
        (
            ("benchmark", "create", "b", "--file", "FILE", "--scorer", "regex", "--set", "extract"),
            "NAME=VALUE",
        ),
    ],
)
def test_what_cannot_work_is_said_at_once(world: World, arguments: tuple[str, ...], message: str) -> None:
    given = [str(world.folder / "prompts.jsonl") if one == "FILE" else one for one in arguments]
    env = {"ASSAY_DATA_DIR": str(world.settings.data_dir)}
    result = CliRunner().invoke(app, given, env=env)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())
    assert world.rows(Dataset) == []
