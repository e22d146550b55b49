"""Running the demo: set up the world, start the real system, drop a model file, wait, report."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from sqlmodel import select

from agent.demo._world import DATASETS, NEW_MODEL, World, make_world
from agent.leaderboard import Leaderboard, build
from agent.registration import add_prompts
from agent.supervisor import Child, Supervisor, embedded_children
from assay.errors import AssayError
from assay.settings import Settings
from storage import estimates, jobs, ledger, studies
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.tables import Study, StudyState

__all__ = [
    "PATIENCE_S",
    "DemoResult",
    "Progress",
    "free_port",
    "run_demo",
    "start_world",
    "wait_for_endpoint",
]

BENCHMARK = "demo"
CAP_USD = 0.05
MAX_PROMPTS = 60
PATIENCE_S = 300.0

MODEL_FILE = """\
name = "{name}"
backend = "openai"
base_url = "http://127.0.0.1:{port}/v1"
max_tokens = 32
price = {{input_per_million = 2.0, output_per_million = 8.0}}
"""


@dataclass(frozen=True)
class Progress:
    """What the demo tells while it runs."""

    stage: str
    bought: int = 0
    total: int = MAX_PROMPTS
    score: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class DemoResult:
    """What the demo found out.

    Attributes:
        board: The leaderboard.
        model: The new model.
        true_score: Its score on all prompts, which the agent never saw.
        score, low, high: Its estimate.
        calls: Calls that were bought.
        full_calls: Calls that a full evaluation needs.
        spent_usd, cap_usd: Money.
        seconds: From dropping the file to the final estimate.
    """

    board: Leaderboard
    model: str
    true_score: float
    score: float
    low: float
    high: float
    calls: int
    full_calls: int
    spent_usd: float
    cap_usd: float
    seconds: float


def run_demo(folder: Path, tell: Callable[[Progress], None], *, seed: int = 0) -> DemoResult:
    """Run the demo in a folder, which is emptied first.

    Raises:
        AssayError: Something did not come up or did not finish; the message names the logs.
    """
    shutil.rmtree(folder, ignore_errors=True)
    settings = _settings(folder)
    tell(Progress("building a benchmark with simulated models"))
    world = make_world(np.random.default_rng(seed))
    database = _fill(settings, world)
    with ExitStack() as stack:
        stack.callback(database.close)
        port = free_port()
        supervisor = _supervisor(settings, world, port)
        stack.callback(supervisor.stop)
        tell(Progress("starting broker, agent, worker and a local endpoint"))
        supervisor.start()
        wait_for_endpoint(port, supervisor)
        tell(Progress(f"registering {NEW_MODEL} by dropping a file into the watched folder"))
        started = time.monotonic()
        _drop_model_file(settings, port)
        study_id = _follow(database, supervisor, tell)
        return _result(database, settings, world, study_id, time.monotonic() - started)


def _settings(folder: Path) -> Settings:
    return Settings(
        data_dir=folder,
        database_url="",
        broker_url="",
        watch_models=folder / "models",
        watch_interval_s=0.3,
        max_prompts=MAX_PROMPTS,
        max_usd=CAP_USD,
        batch_size=10,
    )


def _fill(settings: Settings, world: World) -> Database:
    assert settings.watch_models is not None
    settings.watch_models.mkdir(parents=True)
    database = Database(settings.database)
    database.create_or_check()
    with database.begin() as session:
        add_prompts(session, BENCHMARK, list(DATASETS), [question.prompt for question in world.questions])
    matrix = settings.data_dir / "history"
    world.write_matrix_folder(matrix)
    import_matrix_folder(database, matrix, BENCHMARK)
    return database


def _supervisor(settings: Settings, world: World, port: int) -> Supervisor:
    answers = settings.data_dir / "answers.json"
    world.save_answers(answers)
    return start_world(settings, answers, port)


def start_world(settings: Settings, answers: Path, port: int) -> Supervisor:
    """Broker, agent and worker beside an endpoint that gives the stored answers; not started yet."""
    endpoint = [sys.executable, "-m", "agent.demo.endpoint", str(answers), "--port", str(port)]
    children = embedded_children(settings, workers=1, web=False, port=settings.web_port)
    return Supervisor([Child("endpoint", endpoint), *children], settings, settings.environment())


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_endpoint(port: int, supervisor: Supervisor) -> None:
    """Wait until the endpoint answers.

    Raises:
        AssayError: It does not within a minute.
    """
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=2).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssayError("the demo's endpoint did not start", f"see {supervisor.logs / 'endpoint.log'}")


def _drop_model_file(settings: Settings, port: int) -> None:
    assert settings.watch_models is not None
    path = settings.watch_models / f"{NEW_MODEL}.toml"
    path.write_text(MODEL_FILE.format(name=NEW_MODEL, port=port), encoding="utf-8")


def _follow(database: Database, supervisor: Supervisor, tell: Callable[[Progress], None]) -> int:
    """Wait until the new model's study is at rest; returns its number."""
    until = time.monotonic() + PATIENCE_S
    last = None
    while time.monotonic() < until:
        supervisor.watch()
        study, progress = _look(database)
        if progress != last:
            tell(progress)
            last = progress
        if study is not None and study.state == StudyState.DONE:
            return int(study.id or 0)
        if study is not None and study.state in (StudyState.PAUSED, StudyState.FAILED):
            raise AssayError(f"the demo's study is {study.state}: {study.reason}", f"see {supervisor.logs}")
        time.sleep(0.1)
    raise AssayError("the demo's study did not finish in time", f"see the logs in {supervisor.logs}")


def _look(database: Database) -> tuple[Study | None, Progress]:
    with database.read() as session:
        study = session.exec(select(Study)).first()
        if study is None or study.id is None:
            return None, Progress("waiting for the agent to see the file")
        if study.state == StudyState.WAITING:
            return study, Progress("learning from the history of 60 models")
        newest = next(iter(reversed(estimates.history(session, study.id))), None)
    if newest is None:
        return study, Progress("choosing the first prompts")
    # The estimate's own count: what was bought since then is not in it yet.
    return study, Progress(
        "buying scores", newest.acquired, MAX_PROMPTS, newest.score, newest.low, newest.high
    )


def _result(
    database: Database, settings: Settings, world: World, study_id: int, seconds: float
) -> DemoResult:
    with database.read() as session:
        final = estimates.history(session, study_id)[-1]
        budget = ledger.budgets_of(session, [("study", study_id)])[0]
        calls = jobs.count_finished(session, study_id)
        board = build(session, BENCHMARK, settings.cache_dir)
        assert studies.find(session, study_id).state == StudyState.DONE
    return DemoResult(
        board=board,
        model=NEW_MODEL,
        true_score=world.true_score(),
        score=final.score,
        low=final.low,
        high=final.high,
        calls=calls,
        full_calls=len(world.questions),
        spent_usd=budget.spent / 1e6,
        cap_usd=budget.cap / 1e6,
        seconds=seconds,
    )
