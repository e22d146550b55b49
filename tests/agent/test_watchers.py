"""Folders of model and prompt files: waited for, taken once, bad ones reported and taken when mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.loop import Agent
from agent.watchers import FolderWatcher, model_folder, prompt_folder
from storage.tables import Benchmark, Dataset, Model, Prompt, Scorer, StudyState
from tests.world import World

MODEL = 'name = "{name}"\nbackend = "replay"\nmatrix = "{matrix}"\n'


@pytest.fixture
def models(world: World) -> Path:
    folder = world.folder / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def prompts(world: World) -> Path:
    folder = world.folder / "prompts"
    folder.mkdir()
    return folder


def look(world: World, watcher: FolderWatcher) -> int:
    """Two looks, as much as a file that lies still needs."""
    return watcher.poll(world.database) + watcher.poll(world.database)


def registered(world: World) -> list[str]:
    return [model.name for model in world.rows(Model) if model.backend != "imported"]


def errors(world: World) -> list[str]:
    return [event.payload["error"] for event in world.events("watcher.error")]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_file_is_taken_once_it_lies_still(world: World, models: Path) -> None:
    watcher, path = model_folder(models), models / "m17.toml"
    whole = MODEL.format(name="m17", matrix=world.matrix)
    for end in (5, 20, len(whole)):  # somebody writes it slowly
        write(path, whole[:end])
        assert watcher.poll(world.database) == 0
    assert watcher.poll(world.database) == 1
    assert registered(world) == ["m17"]
    assert errors(world) == []
    assert look(world, watcher) == 0


def test_an_empty_file_is_waited_for(world: World, models: Path) -> None:
    watcher = model_folder(models)
    write(models / "m17.toml", "")
    assert look(world, watcher) == 0
    write(models / "m17.toml", MODEL.format(name="m17", matrix=world.matrix))
    assert look(world, watcher) == 1
    assert errors(world) == []


def test_a_restart_repeats_nothing(world: World, models: Path) -> None:
    write(models / "m17.toml", MODEL.format(name="m17", matrix=world.matrix))
    write(models / "bad.toml", "name = 1")
    assert look(world, model_folder(models)) == 1
    assert look(world, model_folder(models)) == 0
    assert len(world.events("model.registered")) == len(errors(world)) == 1


def test_a_bad_file_is_reported_once_and_taken_after_it_was_mended(world: World, models: Path) -> None:
    watcher, bad = model_folder(models), models / "bad.toml"
    write(bad, MODEL.format(name="m17", matrix=world.matrix).replace("backend", "backnd"))
    write(models / "good.toml", MODEL.format(name="m18", matrix=world.matrix))
    assert look(world, watcher) == 1
    assert look(world, watcher) == 0
    (message,) = errors(world)
    assert "bad.toml: unknown key 'backnd', did you mean 'backend'?" in message
    assert world.events("watcher.error")[0].payload["file"] == "bad.toml"
    write(bad, MODEL.format(name="m17", matrix=world.matrix))
    assert look(world, watcher) == 1
    assert registered(world) == ["m18", "m17"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "name = ", "a.toml cannot be read"),
        ("a.yaml", "name: [", "a.yaml cannot be read"),
        ("a.json", "{", "a.json cannot be read"),
        ("a.json", "[1, 2]", "does not hold a mapping"),
        ("a.toml", 'backend = "replay"', "name: Field required"),
        ("a.toml", 'name = "x"\nbackend = "opnai"', "unknown backend 'opnai' (did you mean 'openai'?"),
        ("a.toml", 'name = "x"\nbase_url = "http://h/v1"', "the price of model 'x' is not known"),
        ("a.toml", 'name = "x"\nprice = {per_call = inf}', "price.per_call"),
        ("a.toml", 'name = "x"\nprice = {per_cal = 1}', "did you mean 'per_call'?"),
        ("a.toml", 'name = "m0"\nbackend = "replay"', "registered already with another description"),
        ("a.yaml", "name: x\n1: 2\nbackend: replay", "1"),
        ("a.yaml", "name: x\nbackend: replay\nattributes: {when: 2026-01-01, 3: x}", "attributes"),
    ],
)
def test_bad_model_files_are_reported_with_what_to_do(
    world: World, models: Path, name: str, content: str, message: str
) -> None:
    write(models / name, content)
    assert look(world, model_folder(models)) == 0
    (said,) = errors(world)
    assert message in said
    assert "\n" not in said
    assert registered(world) == []


def test_other_files_are_left_alone(world: World, models: Path) -> None:
    for name in (".hidden.toml", "notes.txt", "m17.toml~"):
        write(models / name, MODEL.format(name="m17", matrix=world.matrix))
    assert look(world, model_folder(models)) == 0
    assert errors(world) == []
    assert look(world, model_folder(models / "not there yet")) == 0


def test_bytes_that_are_no_text_are_reported(world: World, models: Path, prompts: Path) -> None:
    (models / "a.toml").write_bytes(b"\xff\xfe\x00name")
    (prompts / "a.jsonl").write_bytes(b"\xff\xfe\x00{}")
    assert look(world, model_folder(models)) + look(world, prompt_folder(prompts)) == 0
    assert len(errors(world)) == 2


def test_a_name_that_points_nowhere_is_left_alone(world: World, models: Path) -> None:
    (models / "link.toml").symlink_to(models / "absent.toml")
    assert look(world, model_folder(models)) == 0


# --- prompts -----------------------------------------------------------------------------------------------

TOML = """
benchmark = "geo"
[[datasets]]
name = "capitals"
weight = 2.0
scorer = "exact-match"
[[prompts]]
id = "fr"
dataset = "capitals"
text = "Capital of France?"
target = "Paris"
"""
YAML = """
datasets:
  - {name: sums, scorer: numeric}
prompts:
  - {id: a, dataset: sums, text: "1 + 1?", target: 2}
  - {id: b, dataset: sums, text: "1 + 2?", target: 3, fields: {since: 2026-01-01}}
"""


def test_prompt_files_of_every_kind(world: World, prompts: Path) -> None:
    line = {"text": "Which?", "choices": ["a", "b"], "target": "A"}
    write(prompts / "plain.jsonl", json.dumps(line) + "\n\n" + json.dumps({**line, "text": "What?"}))
    write(prompts / "inside" / "one.jsonl", json.dumps({"id": "x", "text": "Why?", "target": "so"}))
    write(prompts / "geo.toml", TOML)
    write(prompts / "maths.yaml", YAML)
    assert look(world, prompt_folder(prompts)) == 4
    assert errors(world) == []
    assert [b.name for b in world.rows(Benchmark)] == ["trivia", "geo", "inside", "maths", "plain"]
    scorers = {scorer.id: scorer.name for scorer in world.rows(Scorer)}
    new = {d.name: (scorers[d.scorer_id], d.weight) for d in world.rows(Dataset) if d.benchmark_id > 1}
    assert new == {
        "capitals": ("exact-match", 2.0),
        "sums": ("numeric", 1.0),
        "default": ("multiple-choice", 1.0),
    }
    keys = [prompt.key for prompt in world.rows(Prompt)][36:]
    assert keys[:4] == ["fr", "x", "a", "b"]
    assert all(len(key) == 32 for key in keys[4:])  # a hash of the content where no id is given
    assert len(world.events("prompts.added")) == 1 + 4


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": ', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '"text"', "a.jsonl, line 1: expected a JSON object"),
        ("a.jsonl", '{"txt": "x"}', "did you mean 'text'?"),
        ("a.jsonl", '{"text": ""}', "text:"),
        ("a.jsonl", '{"id": "1", "text": "x"}\n{"id": "1", "text": "y"}', "stands for two different texts"),
        ("trivia.jsonl", '{"id": "p0", "dataset": "easy", "text": "y"}', "stands for two different texts"),
        ("a.toml", "promts = []", "unknown key 'promts'"),
        ("a.yaml", "prompts: 5", "a.yaml: prompts"),
        ("a.yaml", "datasets: {name: x}", "a.yaml: datasets"),
        ("a.yaml", "benchmark: 3\nprompts: [{text: x}]", "a.yaml: benchmark"),
        ("a.yaml", "prompts: [5]", "a.yaml, prompt 1"),
        ("a.yaml", "datasets: [{name: d, scorer: exat-match}]", "did you mean 'exact-match'?"),
    ],
)
def test_bad_prompt_files_are_reported_and_nothing_of_them_stays(
    world: World, prompts: Path, name: str, content: str, message: str
) -> None:
    write(prompts / name, content)
    assert look(world, prompt_folder(prompts)) == 0
    (said,) = errors(world)
    assert message in said
    assert len(world.rows(Prompt)) == 36
    assert [b.name for b in world.rows(Benchmark)] == ["trivia"]


def test_a_dropped_file_ends_as_an_estimate(world: World, models: Path) -> None:
    agent = Agent(world.agent_context(), [model_folder(models)])
    world.settings.watch_interval_s = 0.001
    write(models / "m19.toml", MODEL.format(name="m19", matrix=world.matrix))
    agent.tick()
    world.settle(agent)
    assert [study.state for study in world.studies()] == [StudyState.DONE]
