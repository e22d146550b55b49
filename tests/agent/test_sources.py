"""The contract of every watcher, against folders and local servers that speak their protocols; then each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.loop import Agent
from agent.views import watcher_lines
from agent.watchers import WATCHERS, Watcher, configured, watchers_of
from assay.errors import AssayError, StorageError, UsageError
from assay.specs import WatcherSpec
from storage.tables import Model, Prompt, StudyState, WatchedItem
from tests.agent.sources import Source, serving
from tests.world import World

REPLAY = {"backend": "replay", "price": {"free": True}}
PRICE = {"price": {"free": True}, "base_url": "http://127.0.0.1:9/v1"}


@dataclass
class Stage:
    """A watcher with a source that the test fills."""

    world: World
    source: Source
    spec: WatcherSpec
    made: Watcher

    @property
    def models(self) -> bool:
        return self.spec.kind not in ("http-jsonl", "prompt-folder")

    def put(self, *names: str) -> None:
        """Have the source hold these things."""
        self.source.names = list(names)
        self.source.lines = "".join(
            json.dumps({"id": name, "text": f"What is {name}?"}) + "\n" for name in names
        )
        if self.spec.folder is None:
            return
        self.spec.folder.mkdir(exist_ok=True)
        for name in names:
            content: dict[str, Any] = {"name": name, **REPLAY, "matrix": str(self.world.matrix)}
            if not self.models:
                content = {"id": name, "text": f"What is {name}?"}
            ending = "json" if self.models else "jsonl"
            path = self.spec.folder / f"{name.replace(':', '_').replace('/', '_')}.{ending}"
            if not path.exists():
                path.write_text(json.dumps(content) + "\n")

    def look(self, watcher: Watcher | None = None) -> int:
        """Poll until the source was read (a folder is looked at twice)."""
        watcher = watcher or self.made
        watcher._next = 0.0
        count = watcher.poll(self.world.database) + (
            0 if self.spec.folder is None else watcher.poll(self.world.database)
        )
        until = time.monotonic() + 5
        while getattr(watcher, "_asking", None) is not None and time.monotonic() < until:
            count += watcher.poll(self.world.database)
        return count

    def again(self) -> Watcher:
        """The same watcher after a restart of the agent."""
        return WATCHERS.get(self.spec.kind)(self.spec)

    def stored(self) -> list[str]:
        if self.models:
            return sorted(model.name for model in self.world.rows(Model) if model.backend != "imported")
        return sorted(prompt.key for prompt in self.world.rows(Prompt)[36:])

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.world.events(kind)]

    def line(self) -> Any:
        self.world.settings.watch = [self.spec]
        with self.world.database.read() as session:
            (line,) = watcher_lines(session, self.world.settings)
        return line


def spec_of(kind: str, source: Source, folder: Path) -> WatcherSpec:
    given: dict[str, dict[str, Any]] = {
        "openai-models": {"url": f"{source.url}/v1", "model": {"price": {"free": True}}},
        "huggingface": {"url": source.url, "source": "org", "model": PRICE},
        "mlflow": {"url": source.url, "model": PRICE},
        "http-jsonl": {"url": f"{source.url}/prompts.jsonl", "benchmark": "facts"},
        "model-folder": {"folder": folder / "models"},
        "prompt-folder": {"folder": folder / "prompts"},
    }
    return WatcherSpec(kind=kind, interval_s=0.001, **given[kind])


@pytest.fixture
def source() -> Iterator[Source]:
    with serving() as source:
        yield source


@pytest.fixture(params=WATCHERS.builtins)
def stage(request: pytest.FixtureRequest, world: World, source: Source) -> Stage:
    spec = spec_of(request.param, source, world.folder)
    return Stage(world, source, spec, WATCHERS.get(spec.kind)(spec))


@pytest.fixture(params=["openai-models", "huggingface", "mlflow", "http-jsonl"])
def remote(request: pytest.FixtureRequest, world: World, source: Source) -> Stage:
    spec = spec_of(request.param, source, world.folder)
    return Stage(world, source, spec, WATCHERS.get(spec.kind)(spec))


class TestEveryWatcher:
    def test_takes_what_is_new_once(self, stage: Stage) -> None:
        stage.put("a:1")
        assert stage.look() == 1
        stage.put("a:1", "b:1", "c:1")
        assert stage.look() >= 1
        assert stage.stored() == ["a:1", "b:1", "c:1"]
        assert stage.look() == 0
        if stage.models:
            assert len(stage.events("model.registered")) == 3

    def test_a_restart_neither_misses_nor_repeats(self, stage: Stage) -> None:
        stage.put("a:1")
        stage.look()
        stage.put("a:1", "b:1")
        restarted = stage.again()
        assert stage.look(restarted) == 1
        assert stage.look(stage.again()) == 0
        assert stage.stored() == ["a:1", "b:1"]
        assert stage.events("watcher.error") == []

    def test_two_agents_take_a_thing_once(self, stage: Stage) -> None:
        stage.put("a:1", "b:1")
        other = stage.again()
        for watcher in (stage.made, other, stage.made):
            stage.look(watcher)
        assert stage.stored() == ["a:1", "b:1"]
        assert len(stage.events("model.registered")) == (2 if stage.models else 0)

    def test_check_stores_nothing(self, stage: Stage) -> None:
        stage.put("a:1")
        assert stage.made.check()
        assert stage.stored() == []
        assert stage.world.rows(WatchedItem, WatchedItem.key) == []

    def test_a_database_that_is_away_loses_nothing(self, stage: Stage) -> None:
        stage.put("a:1")
        stage.world.database.engine.dispose()
        short = type(stage.world.database)(stage.world.settings.database, busy_timeout_s=0.05)
        whole, stage.world.database = stage.world.database, short
        with stage.world.locked(), pytest.raises(StorageError):
            stage.look()
        short.close()
        stage.world.database = whole
        stage.look()
        assert stage.stored() == ["a:1"]


class TestEverySourceOnTheNetwork:
    def test_is_waited_for_while_it_is_down(self, remote: Stage) -> None:
        remote.put("a:1")
        remote.source.status = 503
        assert [remote.look() for _ in range(3)] == [0, 0, 0]
        (down,) = remote.events("watcher.down")  # said once, not at each try
        assert "status 503" in down["error"]
        assert (remote.line().state, remote.line().failures) == ("down", 3)
        remote.source.status = 200
        assert remote.look() == 1
        assert len(remote.events("watcher.up")) == 1
        line = remote.line()
        assert (line.state, line.items, line.refused, line.failures, line.error) == ("up", 1, 0, 0, "")

    def test_is_asked_less_often_the_longer_it_is_down(self, remote: Stage) -> None:
        remote.source.status = 500
        remote.spec.interval_s = 60
        waits = []
        for _ in range(9):
            remote.look()
            waits.append(round(remote.made._next - time.monotonic()))
        assert waits == [120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600]

    def test_that_does_not_answer_is_down(self, remote: Stage, world: World) -> None:
        spec = remote.spec.model_copy(update={"url": "http://127.0.0.1:1"})
        watcher = WATCHERS.get(spec.kind)(spec)
        assert remote.look(watcher) == 0
        assert "does not answer" in remote.events("watcher.down")[0]["error"]
        with pytest.raises(AssayError, match="does not answer"):
            watcher.check()

    @pytest.mark.parametrize("body", [b"<html>", b"[1", b"[3]", b'{"items": [{}], "model_versions": [{}]}'])
    def test_that_talks_nonsense_is_reported(self, remote: Stage, body: bytes) -> None:
        remote.put("a:1")
        remote.source.body = body
        assert remote.look() == 0
        said = remote.events("watcher.down") + remote.events("watcher.error")
        assert len(said) == 1
        assert "\n" not in said[0]["error"]
        assert remote.stored() == []

    def test_gets_its_key_from_the_environment(self, remote: Stage, monkeypatch) -> None:
        spec = remote.spec.model_copy(update={"api_key_env": "LAB_KEY"})
        remote.put("a:1")
        monkeypatch.delenv("LAB_KEY", raising=False)
        remote.look(WATCHERS.get(spec.kind)(spec))
        assert "LAB_KEY is not set" in remote.events("watcher.down")[0]["error"]
        monkeypatch.setenv("LAB_KEY", "secret-of-the-lab")
        assert remote.look(WATCHERS.get(spec.kind)(spec)) == 1
        assert remote.source.asked[-1][2] == "Bearer secret-of-the-lab"
        whole = (remote.world.settings.data_dir / "assay.db").read_bytes()
        assert b"secret-of-the-lab" not in whole

    def test_is_not_read_again_while_its_etag_stays(self, remote: Stage) -> None:
        if remote.spec.kind == "mlflow":
            pytest.skip("MLflow's registry has no ETags")
        remote.put("a:1")
        remote.look()
        sent = remote.source.sent
        assert remote.look(remote.again()) == 0
        assert remote.source.sent == sent
        assert remote.source.asked[-1][1]

    def test_another_configuration_reads_it_again(self, remote: Stage) -> None:
        if not remote.models:
            pytest.skip("has no model table")
        remote.put("a:1")
        spec = remote.spec.model_copy(update={"model": {**remote.spec.model, "price": None}})
        assert remote.look(WATCHERS.get(spec.kind)(spec)) == 0
        assert "the price of model 'a:1' is not known" in remote.events("watcher.error")[0]["error"]
        assert remote.look(WATCHERS.get(spec.kind)(spec)) == 0
        assert len(remote.events("watcher.error")) == 1
        assert remote.look() == 1  # as soon as the price is given
        assert remote.stored() == ["a:1"]

    def test_only_wanted_names_are_taken(self, remote: Stage) -> None:
        if not remote.models:
            pytest.skip("has no names")
        spec = remote.spec.model_copy(update={"match": "b*"})
        remote.put("a:1", "b:1", "c:1")
        assert remote.look(WATCHERS.get(spec.kind)(spec)) == 1
        assert remote.stored() == ["b:1"]

    def test_what_is_registered_already_stays_as_it_is(self, remote: Stage) -> None:
        if not remote.models:
            pytest.skip("has no models")
        remote.world.add_model("a:1", backend="replay", matrix=str(remote.world.matrix))
        remote.put("a:1", "b:1")
        remote.look()
        assert remote.stored() == ["a:1", "b:1"]
        assert next(m for m in remote.world.rows(Model) if m.name == "a:1").backend == "replay"
        assert remote.events("watcher.error") == []


class TestKinds:
    def make(self, world: World, kind: str, **given: Any) -> Watcher:
        return WATCHERS.get(kind)(WatcherSpec(kind=kind, **given))

    def test_an_endpoint_s_model_is_called_there(self, world: World, source: Source) -> None:
        spec = spec_of("openai-models", source, world.folder)
        stage = Stage(world, source, spec, WATCHERS.get(spec.kind)(spec))
        stage.put("org/llama-3")
        stage.look()
        model = next(m for m in world.rows(Model) if m.name == "org/llama-3")
        assert (model.spec["base_url"], model.spec["model"]) == (f"{source.url}/v1", "org/llama-3")

    def test_placeholders(self, world: World, source: Source) -> None:
        described = {
            "base_url": "http://serving/{name}/{version}/v1",
            "price": {"free": True},
            "name": "reg-{id}",
        }
        spec = WatcherSpec(kind="mlflow", url=source.url, model=described, interval_s=0.001)
        stage = Stage(world, source, spec, WATCHERS.get("mlflow")(spec))
        stage.put("bert{id}:7")
        stage.look()
        (model,) = (m for m in world.rows(Model) if m.backend == "openai")
        assert model.name == "reg-bert{id}:7"  # what a source says is not filled in again
        assert model.spec["base_url"] == "http://serving/bert{id}/7/v1"

    def test_a_hub_s_collection_and_pages(self, world: World, source: Source) -> None:
        for kind_source, count in (("org", 5), ("owner/some-list-1a", 2)):
            spec = WatcherSpec(
                kind="huggingface",
                name=kind_source,
                url=source.url,
                source=kind_source,
                model=PRICE,
                interval_s=0.001,
            )
            stage = Stage(world, source, spec, WATCHERS.get("huggingface")(spec))
            stage.put(*(f"{kind_source}/m{i}" for i in range(count)))
            assert stage.look() == count
        assert source.asked[-1][0] == "/api/collections/owner/some-list-1a"

    def test_a_page_that_leads_elsewhere_is_not_followed(self, world: World, source: Source) -> None:
        spec = spec_of("huggingface", source, world.folder)
        stage = Stage(world, source, spec, WATCHERS.get("huggingface")(spec))
        stage.put("a", "b", "c")
        source.url = "http://127.0.0.1:1"
        assert stage.look() == 0
        assert "lies elsewhere" in stage.events("watcher.down")[0]["error"]

    def test_a_bad_prompt_is_named_once_and_taken_when_mended(self, world: World, source: Source) -> None:
        spec = spec_of("http-jsonl", source, world.folder)
        stage = Stage(world, source, spec, WATCHERS.get("http-jsonl")(spec))
        source.lines = '{"id": "a", "text": "A?"}\n{"txt": "b"}\n'
        assert [stage.look(), stage.look()] == [0, 0]
        (error,) = stage.events("watcher.error")
        assert "line 2: unknown key 'txt', did you mean 'text'?" in error["error"]
        assert stage.line().refused == 1
        source.lines = '{"id": "a", "text": "A?"}\n{"id": "b", "text": "B?"}\n'
        assert stage.look() == 1
        assert stage.stored() == ["a", "b"]
        assert stage.line().refused == 0

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"kind": "openai-models"}, "needs a url"),
            ({"kind": "openai-models", "url": "ftp://h"}, "needs a url"),
            ({"kind": "http-jsonl", "url": "http://h"}, "names no benchmark"),
            ({"kind": "huggingface", "model": PRICE}, "names no source"),
            ({"kind": "huggingface", "source": "org"}, "who serves the models"),
            ({"kind": "mlflow", "url": "http://h"}, "who serves the models"),
            ({"kind": "model-folder"}, "names no folder"),
            ({"kind": "opnai-models"}, "unknown watcher 'opnai-models'"),
        ],
    )
    def test_an_incomplete_configuration_is_refused(
        self, world: World, given: dict[str, Any], said: str
    ) -> None:
        world.settings.watch = [WatcherSpec(**given)]
        with pytest.raises(UsageError, match=said) as caught:
            watchers_of(world.settings)
        assert caught.value.hint

    def test_two_of_a_name_are_refused(self, world: World) -> None:
        world.settings.watch_models = world.folder
        world.settings.watch = [WatcherSpec(kind="model-folder", folder=world.folder)]
        with pytest.raises(UsageError, match="two watchers are called 'model-folder'"):
            configured(world.settings)

    def test_an_announced_model_ends_as_an_estimate(self, world: World, source: Source) -> None:
        described = {"backend": "replay", "matrix": str(world.matrix), "row": "{name}"}
        world.settings.watch_interval_s = 0.001
        spec = WatcherSpec(kind="mlflow", url=source.url, model=described, interval_s=0.001)
        source.names = ["m17:1"]
        agent = Agent(world.agent_context(), [WATCHERS.get("mlflow")(spec)])
        until = time.monotonic() + 20
        while not world.studies() and time.monotonic() < until:
            agent.tick()
        world.settle(agent)
        assert [study.state for study in world.studies()] == [StudyState.DONE]


def test_settings_read_watchers_from_the_file_and_pass_them_on(tmp_path: Path, monkeypatch) -> None:
    from assay.settings import load_settings

    monkeypatch.chdir(tmp_path)
    (tmp_path / "assay.toml").write_text(
        '[[watch]]\nkind = "openai-models"\nurl = "http://h/v1"\nmatch = "a*"\n'
    )
    (spec,) = load_settings().watch
    assert (spec.label, spec.match) == ("openai-models", "a*")
    variables = load_settings().environment()
    (tmp_path / "assay.toml").unlink()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings().watch == [spec]
