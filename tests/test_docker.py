"""The compose file: what starts after what, as whom, with which secrets; and each service's command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
import redis
import yaml
from typer.testing import CliRunner

from agent.cli import app
from agent.demo._run import free_port

DOCKER = Path(__file__).resolve().parents[1] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if "build" in one}
RUNNING = {name: one for name, one in OURS.items() if name != "migrate"}
FILES = ("Dockerfile", "Dockerfile.cuda")


def test_database_and_broker_say_when_they_are_healthy() -> None:
    for name in ("db", "broker"):
        assert SERVICES[name]["healthcheck"]["test"]


def test_migrations_wait_for_a_healthy_database_and_everything_else_for_them() -> None:
    assert SERVICES["migrate"]["depends_on"]["db"]["condition"] == "service_healthy"
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["migrate"]["restart"] == "no"
    for one in RUNNING.values():
        assert one["depends_on"] == {
            "db": {"condition": "service_healthy"},
            "broker": {"condition": "service_healthy"},
            "migrate": {"condition": "service_completed_successfully"},
        }


def test_every_service_that_is_waited_for_is_there() -> None:
    for one in SERVICES.values():
        assert set(one.get("depends_on", {})) <= set(SERVICES)
        named = {str(volume).partition(":")[0] for volume in one.get("volumes", [])}
        assert {name for name in named if not name.startswith((".", "/"))} <= set(COMPOSE["volumes"])


def test_each_queue_has_a_pool_of_its_own() -> None:
    queues = [one["command"][2] for one in RUNNING.values() if one["command"][0] == "worker"]
    assert {"inference", "judge", "train"} <= set(queues)


def test_nothing_runs_as_root() -> None:
    assert {SERVICES[name]["user"] for name in ("db", "broker")} == {"postgres", "redis"}
    for name in FILES:
        lines = (DOCKER / name).read_text().splitlines()
        user = max(i for i, line in enumerate(lines) if line.startswith("USER "))
        assert lines[user] == "USER assay"
        assert user < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    for one in OURS.values():
        assert one["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in one["security_opt"]


def test_secrets_come_from_the_environment_and_only_to_whom_they_concern() -> None:
    for name, one in SERVICES.items():
        for key, value in one.get("environment", {}).items():
            if re.search("PASSWORD|KEY|SECRET|TOKEN", key):
                assert re.fullmatch(r"\$\{\w+(:[?-][^}]*)?\}", value), (name, key)
            else:
                assert "@" not in value or re.match(r"\w+://\w+@", value), "a password in a URL"
    with_keys = {name for name, one in RUNNING.items() if "OPENAI_API_KEY" in one["environment"]}
    assert with_keys == {"worker-inference", "worker-judge", "worker-gpu"}


def test_workers_have_time_to_finish_their_calls() -> None:
    for one in RUNNING.values():
        if one["command"][0] == "worker":
            assert one["stop_grace_period"] in ("90s", "10m")


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_one_that_assay_knows(name: str) -> None:
    command = OURS[name]["command"]
    words = command[: 2 if command[0] == "db" else 1]
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for option in (part for part in command if part.startswith("--")):
        assert option in result.stdout


@pytest.mark.parametrize("name", FILES)
def test_images_hold_every_package_and_pinned_versions(name: str) -> None:
    text = (DOCKER / name).read_text()
    for package in ("assay", "storage", "estimators", "policies", "workers", "agent"):
        assert f"COPY {package} {package}" in text
    assert text.count("pip install -c constraints.txt") == 2
    assert "STOPSIGNAL SIGTERM" in text


# --- the commands, outside containers -----------------------------------------------------------------------

POSTGRES = os.environ.get("ASSAY_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
BROKER = "redis://127.0.0.1:6379/7"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    name = f"assay_docker_{os.getpid()}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield {
        **os.environ,
        "ASSAY_DATABASE_URL": f"{POSTGRES.rpartition('/')[0]}/{name}",
        "ASSAY_BROKER_URL": BROKER,
        "ASSAY_DATA_DIR": str(tmp_path / "data"),
        "ASSAY_WATCH_MODELS": str(tmp_path),
        "PYTHONPATH": str(DOCKER.parent),
        "OMP_NUM_THREADS": "1",
    }
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    redis.Redis.from_url(BROKER).flushdb()


@pytest.mark.services
@pytest.mark.timeout(300)
def test_each_service_runs_outside_a_container_and_stops_when_told(
    environment: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    assay = [sys.executable, "-m", "agent"]
    migrate = [*assay, *SERVICES["migrate"]["command"]]
    subprocess.run(migrate, env=environment, cwd=tmp_path, check=True, capture_output=True)
    running = {}
    for name, one in RUNNING.items():
        command = [str(port) if part == "8765" else part for part in one["command"]]
        with (tmp_path / f"{name}.log").open("wb") as log:
            running[name] = subprocess.Popen(
                [*assay, *command], env=environment, cwd=tmp_path, stdout=log, stderr=log
            )
    try:
        _until(lambda: all(_is_up(tmp_path, name, port) for name in running))
        assert {name: one.poll() for name, one in running.items()} == dict.fromkeys(running)
        for one in running.values():
            one.send_signal(signal.SIGTERM)
        codes = {name: one.wait(30) for name, one in running.items()}
        assert codes.pop("page") in (0, -signal.SIGTERM)  # uvicorn ends by the signal once it has stopped
        assert set(codes.values()) == {0}
    finally:
        for one in running.values():
            one.kill()
            one.wait()


def _is_up(folder: Path, name: str, port: int) -> bool:
    if RUNNING[name]["command"][0] == "worker":
        return " ready." in (folder / f"{name}.log").read_text()
    if name == "page":
        try:
            with urlopen(f"http://127.0.0.1:{port}/", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
    return True  # the agent says nothing while there is nothing to do


def _until(holds: Any) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, "a service did not start"
        time.sleep(0.2)
