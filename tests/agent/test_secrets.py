"""The value of a key appears nowhere: not in the database, the logs, the files, the pages, the commands."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from agent.cli import app
from agent.registration import add_prompts
from agent.web import create_app
from assay.specs import DatasetSpec, PromptSpec
from storage.tables import StudyState
from tests.workers.endpoint import completion, serving
from tests.world import World

KEYS = {
    "SECRET_TEST_MODEL_KEY": "sk-model-5d41402abc4b2a76",
    "SECRET_TEST_JUDGE_KEY": "sk-judge-7d793037a0760186",
}
PRICE = {"input_per_million": 1.0, "output_per_million": 2.0}
PROMPTS = 6


def answering(seen: set[str], refused: dict[str, int]) -> Any:
    """A model and a judge behind one endpoint; some first tries fail with a body that quotes the key."""

    def answer(body: dict[str, Any]) -> dict[str, Any] | int:
        text = body["messages"][-1]["content"]
        if text.endswith(("2", "3")) and refused.setdefault(text, 0) < 1:
            refused[text] += 1
            return 503
        if body["model"] == "judge":
            return completion(json.dumps({"reason": "fine", "score": 7}))
        return completion(f"an answer to {text}")

    return answer


def test_a_full_run_leaks_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Models and a judge with keys, failures that quote them, a fitted estimator, every page and command."""
    caplog.set_level(logging.DEBUG)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    world = World.open(tmp_path, estimator="aggregate", max_prompts=PROMPTS)
    with serving() as endpoint:
        endpoint.responder = answering(set(), {})
        common = {"base_url": endpoint.url, "price": PRICE}
        world.add_model("judge", api_key_env="SECRET_TEST_JUDGE_KEY", benchmarks=[], **common)
        judged = DatasetSpec(
            name="open", scorer="judge-score", scorer_params={"judge": "judge"}, score_type="real"
        )
        prompts = [PromptSpec(id=f"p{i}", dataset="open", text=f"Tell me {i}") for i in range(PROMPTS)]
        with world.database.begin() as session:
            add_prompts(session, "talk", [judged], prompts)
        for name in ("m", "n"):
            world.add_model(name, announce=True, api_key_env="SECRET_TEST_MODEL_KEY", **common)
        world.add_model(
            "o", announce=True, api_key_env="SECRET_TEST_MODEL_KEY", **{**common, "model": "denied"}
        )
        world.settle()
        sent = {headers.get("Authorization") for headers in endpoint.headers}
    assert sent == {
        f"Bearer {value}" for value in KEYS.values()
    }  # they were used, so there is what to look for
    assert {study.state for study in world.studies()} == {StudyState.DONE}
    answers = [*pages(world), *commands(world)]
    world.database.close()
    places = {
        **{str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()},
        "logs": caplog.text.encode(),
        **{name: content.encode() for name, content in answers},
    }
    assert len(places) > 20
    leaks = [
        (where, key) for where, content in places.items() for key in KEYS.values() if key.encode() in content
    ]
    assert leaks == []


def pages(world: World) -> list[tuple[str, str]]:
    """Every page and API answer that takes no parameter or a known one."""
    found = []
    values = {
        "name": "m", "model": "m", "benchmark": "talk", "benchmark_name": "talk", "study_id": "1",
        "number": "1", "prompt_id": "1", "id": "1", "job_id": "1",
    }  # fmt: skip
    with TestClient(create_app(world.settings), raise_server_exceptions=False) as client:
        api = ["/api/v1" + path for path in client.get("/api/v1/openapi.json").json()["paths"]]
        for path in [*_paths(client.app), *api]:
            filled = path.format_map(_Known(values))
            if "{" in filled or "live" in filled or "stream" in filled:
                continue
            answer = client.get(filled)
            assert answer.status_code < 500, filled
            found.append((filled, answer.text + str(dict(answer.headers))))
        client.app.state.database.close()  # type: ignore[attr-defined]
    return found


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def _paths(application: Any) -> list[str]:
    return sorted({route.path.replace(":path", "") for route in application.routes if hasattr(route, "path")})


def commands(world: World) -> list[tuple[str, str]]:
    """What the commands show of models, studies and money."""
    env = {"ASSAY_DATA_DIR": str(world.settings.data_dir)}
    asked = [
        ["model", "list", "--all"], ["model", "show", "m"], ["benchmark", "show", "talk"], ["study", "list"],
        ["study", "show", "1"], ["leaderboard", "talk"], ["doctor"],
    ]  # fmt: skip
    found = []
    for arguments in asked:
        for form in ([], ["--json"]):
            result = CliRunner().invoke(app, [*arguments, *form], env=env)
            found.append((" ".join([*arguments, *form]), result.output))
    return found
