"""A real MLflow server: a registered version starts a study, found by polling and told by webhook.

Needs MLflow's command, on the PATH or named by ASSAY_TEST_MLFLOW (it may be installed in an environment of
its own; none of its packages is needed here).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from agent.loop import Agent
from agent.watchers import watchers_of
from agent.web import create_app
from assay.specs import WatcherSpec
from storage.tables import Model, StudyState
from tests.world import World

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(300)]

SECRET = "shared with the registry"
START_S = 120.0
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a running MLflow server."""
    command = os.environ.get("ASSAY_TEST_MLFLOW") or shutil.which("mlflow")
    if command is None or not Path(command).is_file():
        pytest.skip("needs MLflow's command on the PATH or in ASSAY_TEST_MLFLOW")
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_CACHE_TTL": "0",  # else a new webhook is known after a minute
    }
    arguments = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, *arguments, *store], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_for(lambda: answers(client), START_S, (folder / "log").read_text)
            yield client
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def wait_for(reached: Callable[[], object], patience_s: float, why: Callable[[], str] = str) -> None:
    until = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < until, why()
        time.sleep(0.1)


def register(client: httpx.Client, name: str) -> None:
    """A registered model with one version."""
    for path, said in (
        ("registered-models/create", {"name": name}),
        ("model-versions/create", {"name": name, "source": "s3://bucket/model"}),
    ):
        client.post(f"/api/2.0/mlflow/{path}", json=said).raise_for_status()


def spec_of(world: World, client: httpx.Client, interval_s: float) -> WatcherSpec:
    return WatcherSpec(
        kind="mlflow",
        name="registry",
        url=str(client.base_url),
        model={"backend": "replay", "matrix": str(world.matrix), "row": "{name}"},
        webhook_secret_env="ASSAY_TEST_HOOK_SECRET",
        interval_s=interval_s,
    )


def models(world: World) -> list[str]:
    return [model.name for model in world.rows(Model) if model.backend == "replay"]


def test_polling_starts_a_study(world: World, registry: httpx.Client) -> None:
    register(registry, "m17")
    world.settings.watch = [spec_of(world, registry, interval_s=0.05)]
    world.settings.watch_interval_s = 0.01
    agent = Agent(world.agent_context(), watchers_of(world.settings))
    wait_for(lambda: agent.tick() or world.studies(), PATIENCE_S)
    world.settle(agent)
    assert models(world) == ["m17:1"]
    assert [study.state for study in world.studies()] == [StudyState.DONE]


def test_a_webhook_starts_a_study(world: World, registry: httpx.Client, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_TEST_HOOK_SECRET", SECRET)
    world.settings.watch = [spec_of(world, registry, interval_s=3600)]
    with service(world) as url:
        hook = {
            "name": "assay",
            "url": f"{url}/api/v1/hooks/mlflow/registry",
            "events": [{"entity": "MODEL_VERSION", "action": "CREATED"}],
            "secret": SECRET,
        }
        registry.post("/api/2.0/mlflow/webhooks", json=hook).raise_for_status()
        register(registry, "m18")
        wait_for(lambda: models(world), PATIENCE_S)
    agent = Agent(world.agent_context())  # without watchers: the event of the webhook is all there is
    world.settle(agent)
    assert models(world) == ["m18:1"]
    assert [study.state for study in world.studies()] == [StudyState.DONE]


@contextmanager
def service(world: World) -> Iterator[str]:
    """The web application on a free port."""
    port = free_port()
    config = uvicorn.Config(create_app(world.settings), port=port, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started, PATIENCE_S)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)
    config.app.state.database.close()  # type: ignore[union-attr]
