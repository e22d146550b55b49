"""Jobs for a local endpoint: a database full of reserved, queued jobs, and workers that run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from sqlalchemy import text

from agent.demo._run import free_port
from agent.supervisor import broker_command
from assay.errors import AssayError
from assay.settings import Settings
from assay.specs import DatasetSpec, ModelSpec, Price, PromptSpec
from storage import catalog, jobs, ledger, studies
from storage.database import Database
from storage.jobs import NewJob
from storage.matrices import load_columns
from workers import broker
from workers.prices import worst_case_charge

__all__ = ["PRICE", "Workload", "endpoint_process", "fill", "rows", "workers_running"]

BENCHMARK = "load"
PRICE = Price(input_per_million=2.0, output_per_million=8.0)


@dataclass
class Workload:
    """A study's jobs, reserved and queued.

    Attributes:
        settings: Of the processes that run them.
        database: Where they are.
        ids: The jobs.
        targets: Right answer of each prompt, by the prompt's key.
    """

    settings: Settings
    database: Database
    ids: list[int]
    targets: dict[str, str] = field(default_factory=dict)

    def send(self, chunk: int) -> None:
        """Name all jobs to the workers, through the broker and Celery."""
        code = (
            "import json, sys; from workers.app import send_jobs; ids, chunk = json.load(sys.stdin);"
            " [send_jobs(ids[i:i + chunk], 'inference') for i in range(0, len(ids), chunk)]"
        )
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([self.ids, chunk]).encode(),
            env={**os.environ, **self.settings.environment()},
            check=True,
        )

    def open_jobs(self) -> int:
        """How many jobs are not at their end."""
        query = "SELECT count(*) FROM job WHERE state IN ('queued', 'leased')"
        return int(rows(self.database, query)[0][0])

    def wait(self, patience_s: float) -> None:
        """Wait until every job is at its end.

        Raises:
            AssayError: Not in time.
        """
        until = time.monotonic() + patience_s
        while self.open_jobs():
            if time.monotonic() > until:
                raise AssayError(f"{self.open_jobs()} jobs are still open", "see the workers' logs")
            time.sleep(0.5)


def rows(database: Database, query: str) -> list[Any]:
    """What a query finds."""
    with database.read() as session:
        return list(session.connection().execute(text(query)).all())


def fill(
    folder: Path, url: str, count: int, *, prefix: str = "say", database_url: str = "", **model: Any
) -> Workload:
    """Make a database with `count` jobs for one model behind `url`; each prompt's answer is its last word."""
    given = model.pop("settings", {})
    settings = Settings(data_dir=folder, database_url=database_url, broker_url="", **given)
    database = Database(settings.database)
    database.upgrade()
    prompts = [PromptSpec(id=f"p{i}", text=f"{prefix} {i}", target=str(i)) for i in range(count)]
    spec = ModelSpec(name="loaded", base_url=url, max_tokens=16, **{"price": PRICE, **model})
    with database.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, BENCHMARK)
        dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name="d"))
        catalog.add_prompts(session, dataset, prompts)
        catalog.bump_prompts_revision(session, benchmark)
        method = catalog.default_method(session, catalog.add_model(session, spec, announce=False)[0].id or 0)
        study = studies.create(
            session,
            studies.StudyRequest(
                benchmark_id=benchmark.id or 0,
                method_ids=[method.id or 0],
                policy="uniform",
                estimator="aggregate",
                caps={"usd": 10**9, "calls": 10**6},
            ),
        )
        assert study is not None
        columns = load_columns(session, benchmark)
        new = [NewJob(method.id or 0, int(pk), int(columns.scorer_pks[0])) for pk in columns.prompt_pks]
        ids = jobs.add(session, study.id or 0, 1, new)
        charges = [worst_case_charge(spec, spec.price or PRICE, prompt.text) for prompt in prompts]
        budgets = ledger.budgets_of(session, [("study", study.id or 0)])
        ledger.reserve(session, budgets, dict(zip(ids, charges, strict=True)))
    return Workload(settings, database, ids, {prompt.id or "": str(prompt.target) for prompt in prompts})


@contextmanager
def endpoint_process(*options: str) -> Iterator[str]:
    """A local endpoint in a process of its own; its base URL."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.endpoint", "--port", str(port), *options]
    running = subprocess.Popen(command)
    try:
        _wait_for(f"http://127.0.0.1:{port}/bill")
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


def _wait_for(url: str) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            with urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@contextmanager
def workers_running(settings: Settings, count: int, threads: int = 4) -> Iterator[list[int]]:
    """The bundled broker and so many worker processes; the workers' process ids."""
    environment = {**os.environ, **settings.environment(), "OMP_NUM_THREADS": "1"}
    logs = settings.data_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        _spawn(stack, broker_command(settings), environment, logs / "broker.log")
        broker.ping(settings.broker, 20)
        command = [sys.executable, "-m", "agent", "worker", "--queues", "inference,judge"]
        command += ["--threads", str(threads)]
        names = [logs / f"worker-{i}.log" for i in range(count)]
        pids = [_spawn(stack, command, environment, name) for name in names]
        _wait_until_ready(names)
        yield pids


def _wait_until_ready(names: Sequence[Path]) -> None:
    until = time.monotonic() + 60
    while not all(name.exists() and " ready." in name.read_text() for name in names):
        if time.monotonic() > until:
            raise AssayError("the workers did not start", f"see {names[0].parent}")
        time.sleep(0.1)


def _spawn(stack: ExitStack, command: Sequence[str], environment: dict[str, str], log: Path) -> int:
    output = stack.enter_context(log.open("ab"))
    running = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    stack.callback(_stop, running)
    return running.pid


def _stop(running: subprocess.Popen[bytes]) -> None:
    running.terminate()
    try:
        running.wait(20)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
