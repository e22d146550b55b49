"""Speed of the running system: scores per second through real workers, and what a decision costs the agent.

*Throughput*: four studies of 500 replayed prompts each, without latency, on SQLite with the bundled broker,
the agent and two worker processes; the clock runs from the first selected batch to the last stored score.

*Decision to dispatch*: `advance` alone, from reading the study to its jobs sent through the broker, on
../shared/data/openllm (1,075 prompts) where it is there and on generated scores of that size where not.

Run with `python -m benchmarks.throughput`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import text

from agent.advance import advance
from agent.context import AgentContext
from agent.supervisor import Child, Supervisor, broker_command, embedded_children
from assay.errors import AssayError
from assay.matrix_folder import read_matrix_folder
from assay.settings import Settings, load_settings
from assay.specs import ModelSpec
from benchmarks.report import markdown_table, update_section
from storage import catalog, studies
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.studies import StudyRequest
from workers.execution import WorkerContext, run_jobs
from workers.training import train_version

__all__ = ["main", "measure_decisions", "measure_throughput"]

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "openllm"
BENCHMARK = "speed"
PATIENCE_S = 300.0
TARGET_PER_S = 300
TARGET_MS = 50.0

#: Estimator, its parameters, batch size.
DECISIONS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("aggregate", {}, 10),
    ("linear-gaussian", {"rank": 4}, 10),
    ("linear-gaussian", {"rank": 4}, 100),
)


@dataclass(frozen=True)
class Throughput:
    """Scores per second from the first select to the last stored score."""

    scores: int
    seconds: float
    batch: int

    @property
    def per_second(self) -> float:
        """The rate."""
        return self.scores / self.seconds


@dataclass(frozen=True)
class Decisions:
    """What one step costs the agent, in milliseconds of wall clock and of its own processor time."""

    name: str
    batch: int
    wall_ms: list[float]
    cpu_ms: list[float]


# --- throughput --------------------------------------------------------------------------------------------


def measure_throughput(folder: Path, *, prompts: int = 500, batch: int = 250, seed: int = 1) -> Throughput:
    """Run four studies through the real system in an empty folder."""
    matrix = _generate(folder / "matrix", models=25, prompts=prompts, seed=seed)
    settings = Settings(data_dir=folder, database_url="", broker_url="", sweep_s=1.0)
    database = _database(settings, matrix, rows="train")
    names = read_matrix_folder(matrix).matrix.method_ids[20:]
    supervisor = _supervisor(settings)
    try:
        supervisor.start()
        _warm_up(supervisor, database, matrix, names[0], batch)
        ids = _studies(database, matrix, names[1:], prompts, batch)
        _wait(supervisor, database)
        seconds, scores = _clock(database, ids)
    finally:
        supervisor.stop()
        database.close()
    return Throughput(scores, seconds, batch)


def _supervisor(settings: Settings) -> Supervisor:
    given = settings.model_dump(mode="json", exclude_none=True)
    environment = {f"ASSAY_{name.upper()}": str(value) for name, value in given.items()}
    return Supervisor(
        embedded_children(settings, workers=2, web=False, port=0),
        settings,
        {**environment, "OMP_NUM_THREADS": "1"},
    )


def _warm_up(supervisor: Supervisor, database: Database, matrix: Path, name: str, batch: int) -> None:
    """One study before the clock runs, so that every process has started and read its matrix."""
    _studies(database, matrix, [name], 400, batch)
    _wait(supervisor, database)


def _studies(database: Database, matrix: Path, names: Sequence[str], prompts: int, batch: int) -> list[int]:
    request = {"estimator": "aggregate", "batch_size": batch, "max_prompts": prompts}
    specs = [ModelSpec(name=f"{name}-live", backend="replay", matrix=str(matrix), row=name) for name in names]
    return [_study(database, spec, request) for spec in specs]


def _wait(supervisor: Supervisor, database: Database) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        supervisor.watch()
        with database.read() as session:
            if not studies.unfinished(session):
                return
        time.sleep(0.2)
    raise AssayError("the studies did not end in time", f"see {supervisor.logs}")


def _clock(database: Database, ids: list[int]) -> tuple[float, int]:
    """Seconds from the first job made to the last one finished, and how many scores were stored."""
    chosen = f"study_id IN ({', '.join(map(str, ids))})"
    query = (
        "SELECT (julianday(max(finished_at)) - julianday(min(created_at))) * 86400, count(*) FROM job"
        f" WHERE state = 'done' AND {chosen}"
    )
    with database.read() as session:
        seconds, scores = session.connection().execute(text(query)).one()
    return float(seconds), int(scores)


# --- decision to dispatch ----------------------------------------------------------------------------------


def measure_decisions(
    folder: Path, estimator: str, params: dict[str, Any], *, batch: int, steps: int
) -> Decisions:
    """Time `advance` for each step of one study; its jobs are run in between, off the clock.

    The broker of ASSAY_DATA_DIR must run.
    """
    real = REAL.is_dir()
    matrix = REAL if real else _generate(folder / "matrix", models=1600, prompts=1075, seed=1)
    settings = Settings(data_dir=folder, database_url="", broker_url="")
    database = _database(settings, matrix, rows="train")
    folder_rows = read_matrix_folder(matrix)
    name = next(row["model"] for row in folder_rows.models if row.get("split") == "test")
    spec = ModelSpec(name=f"{name}-live", backend="replay", matrix=str(matrix), row=name)
    request = {"estimator": estimator, "estimator_params": params, "batch_size": batch}
    study_id = _study(database, spec, {**request, "max_prompts": batch * steps})
    decisions = _timed_steps(settings, database, study_id)
    database.close()
    return Decisions(f"{estimator}, {'openllm' if real else 'generated'}", batch, *decisions)


def _study(database: Database, spec: ModelSpec, request: dict[str, Any]) -> int:
    with database.begin() as session:
        catalog.add_model(session, spec, announce=False)
        study = studies.create(
            session,
            StudyRequest(
                benchmark_id=catalog.find_benchmark(session, BENCHMARK).id or 0,
                method_ids=[catalog.find_method(session, spec.name).id or 0],
                policy="stratified",
                caps={"usd": 1_000_000},
                **request,
            ),
        )
        assert study is not None
        assert study.id is not None
        return study.id


def _timed_steps(settings: Settings, database: Database, study_id: int) -> tuple[list[float], list[float]]:
    from workers import app  # reads the settings when it is imported

    sent: list[int] = []

    def send(ids: Any, kind: str) -> None:
        app.send_jobs(ids, kind)
        sent.extend(ids)

    worker = WorkerContext(database, settings, "benchmark", wake=lambda: None, send=lambda *_: None)
    context = AgentContext(database, settings, send, lambda version_id: _train(worker, version_id))
    advance(context, study_id)  # asks for the estimator, which is fitted at once
    wall, cpu = [], []
    while True:
        started, used = time.perf_counter(), time.process_time()
        advance(context, study_id)
        if not sent:
            return wall[1:], cpu[1:]  # the first step reads columns and estimator, which then stay
        wall.append((time.perf_counter() - started) * 1000)
        cpu.append((time.process_time() - used) * 1000)
        run_jobs(worker, sent)
        sent.clear()


def _train(worker: WorkerContext, version_id: int) -> None:
    if not train_version(worker, version_id):
        raise AssayError(f"version {version_id} was not fitted")


@contextmanager
def _broker() -> Iterator[None]:
    """A bundled broker in a folder of its own, which this process's Celery app uses."""
    with tempfile.TemporaryDirectory(prefix="assay-speed-") as folder:
        os.environ.update(ASSAY_DATA_DIR=folder, ASSAY_BROKER_URL="")
        settings = load_settings()
        supervisor = Supervisor([Child("broker", broker_command(settings))], settings)
        try:
            supervisor.start()
            yield
        finally:
            supervisor.stop()


# --- both --------------------------------------------------------------------------------------------------


def _database(settings: Settings, matrix: Path, *, rows: str) -> Database:
    database = Database(settings.database)
    database.upgrade()
    import_matrix_folder(database, matrix, BENCHMARK, rows=rows)
    with database.begin() as session:
        session.connection().execute(text("UPDATE event SET handled_at = created_at"))
    return database


def _generate(folder: Path, *, models: int, prompts: int, seed: int) -> Path:
    """A matrix folder of seeded logistic scores; the last fifth of its rows is the test split."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.3, 1.2, (models, 1)) - rng.normal(0.0, 1.3, prompts)
    scores = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int8)
    folder.mkdir(parents=True)
    np.savez(folder / "scores.npz", scores=scores)
    lines = [
        json.dumps({"id": f"p{j}", "dataset": f"d{j % 5}", "text": f"question {j}"}) for j in range(prompts)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [f"m{i},{'train' if i < models * 4 // 5 else 'test'}" for i in range(models)]
    (folder / "models.csv").write_text("model,split\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    """Measure, print, write docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md as it is")
    parser.add_argument("--only", choices=["throughput", "decisions"])
    options = parser.parse_args()
    tables = []
    if options.only != "decisions":
        tables.append(_throughput_table())
    if options.only != "throughput":
        tables.append(_decision_table())
    print("\n\n".join(tables))
    if not options.no_report and options.only is None:
        update_section(
            "Throughput and decision time",
            "python -m benchmarks.throughput",
            "\n\n".join(tables),
            data="generated 500 prompts; ../shared/data/openllm, train rows as history",
            seeds="1",
            notes=_notes(),
        )
    sys.exit(0)


def _notes() -> str:
    return (
        f"Targets: at least {TARGET_PER_S} scores/s; under {TARGET_MS:.0f} ms per step. The first step of a"
        " study, which reads the benchmark's columns and the estimator, is left out. Load average at the"
        f" end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; wall clock grows with it."
    )


def _throughput_table() -> str:
    rows = []
    for batch in (100, 250):
        with tempfile.TemporaryDirectory(prefix="assay-speed-") as folder:
            result = measure_throughput(Path(folder), batch=batch)
        rows.append([batch, result.scores, f"{result.seconds:.2f}", f"{result.per_second:.0f}"])
        print(rows[-1], flush=True)
    return markdown_table(["batch", "scores", "seconds", "scores/s, 2 workers, SQLite"], rows)


def _decision_table() -> str:
    with _broker():
        return _decision_rows()


def _decision_rows() -> str:
    rows = []
    for estimator, params, batch in DECISIONS:
        with tempfile.TemporaryDirectory(prefix="assay-speed-") as folder:
            result = measure_decisions(Path(folder), estimator, params, batch=batch, steps=9)
        wall, cpu = np.array(result.wall_ms), np.array(result.cpu_ms)
        rows.append(
            [
                result.name,
                batch,
                len(wall),
                f"{np.median(wall):.1f}",
                f"{wall.max():.1f}",
                f"{np.median(cpu):.1f}",
            ]
        )
        print(rows[-1], flush=True)
    return markdown_table(
        ["estimator, data", "batch", "steps", "median ms", "longest ms", "median CPU ms"], rows
    )


if __name__ == "__main__":
    main()
