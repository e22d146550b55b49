"""A leaderboard of 2,000 models x 12,032 prompts: seconds to build it, and what 20 readers of the page wait.

    python -m benchmarks.leaderboard [--methods 2000] [--prompts 12032] [--seconds 20] [--data FOLDER]

Nine in ten models are complete, one in ten has an estimate. A server process answers 20 concurrent readers
of page and JSON while a writer stores a score and an estimate every 0.5 s, as a running study does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import text
from sqlmodel import Session, select

from agent import render
from agent.leaderboard import build
from agent.web import serve
from assay.settings import Settings
from assay.specs import DatasetSpec, ModelSpec, Price, PromptSpec
from benchmarks.report import markdown_table, update_section
from storage import catalog, estimates, scores, studies
from storage.database import Database
from storage.tables import Benchmark, Dataset, Estimate, Method, Origin, Prompt

Row = tuple[str, ...]
SPAWN = multiprocessing.get_context("spawn")
NAME = "large"
PATHS = {
    "page": f"/benchmarks/{NAME}",
    "JSON of the page": f"/benchmarks/{NAME}.json",
    "API": f"/api/v1/benchmarks/{NAME}/leaderboard",
}
BUILD_COLUMNS = ("build, nothing cached", "counts cached", "after a new score", "JSON text")
COLUMNS = ("what", "while", "per s", "median, ms", "95 %, ms", "99 %, ms", "processor each, ms", "load")
NOTES = """\
One process serves pages and API. {readers} readers in a process of their own ask over one connection
each without a pause for {seconds:g} s, so every wait is a full queue; a writer in a third process stores
a score and an estimate every 0.5 s. Every answer is the whole leaderboard (JSON) or its first 100 rows
(page), gzip. "load" is the machine's load average after the run; readers, writer and server themselves
are about two of it."""
PORT = 18765
READERS = 20
ROW = (
    "INSERT INTO score (dataset_id, scorer_id, method_id, prompt_id, value, origin)"
    " SELECT :d, :s, :m, id, abs(random()) % 1000 < :skill, 'imported' FROM prompt ORDER BY id LIMIT :n"
)


def main() -> None:
    """Build the database where it is absent, then measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=12032)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "assay-bench-leaderboard")
    options = parser.parse_args()
    settings = Settings(data_dir=options.data)
    database = Database(settings.database)
    if not (options.data / "assay.db").exists():
        seconds = clock(lambda: fill(database, options.methods, options.prompts))
        print(f"filled {options.methods * options.prompts:,} cells in {seconds:.0f} s")
    built = measure_build(database, settings)
    rows = measure_pages(database, settings, options.seconds)
    size = f"{options.methods:,} models x {options.prompts:,} prompts"
    update_section(
        "Leaderboard under load",
        f"python -m benchmarks.leaderboard --methods {options.methods} --prompts {options.prompts}"
        f" --seconds {options.seconds:g}",
        markdown_table(BUILD_COLUMNS, [built]) + "\n\n" + markdown_table(COLUMNS, rows),
        data=f"simulated: {size}, complete but for every tenth model, which has 100 scores and an estimate",
        notes=NOTES.format(readers=READERS, seconds=options.seconds),
    )


def fill(database: Database, methods: int, prompts: int) -> None:
    """Complete rows, an estimate for every tenth method; scores by SQL, since importing is not measured."""
    Path(str(database.url.database)).parent.mkdir(parents=True, exist_ok=True)
    database.create_or_check()
    with database.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, NAME)
        dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name="all"))
        catalog.add_prompts(session, dataset, (PromptSpec(id=f"{j:05d}", text="?") for j in range(prompts)))
        pks = [add_method(session, f"model-{i:04d}") for i in range(methods)]
        study = start_study(session, benchmark, pks[::10])
        for pk in pks:
            count = 100 if pk in pks[::10] else prompts
            values = {
                "d": dataset.id,
                "s": dataset.scorer_id,
                "m": pk,
                "n": count,
                "skill": 300 + pk * 7919 % 600,
            }
            session.connection().execute(text(ROW), values)
        estimates.add(session, [estimate(benchmark, study, pk, 1, prompts) for pk in pks[::10]])
        scores.bump_revision(session, int(benchmark.id or 0))


def add_method(session: Session, name: str) -> int:
    """A model with its default method."""
    spec = ModelSpec(name=name, backend="replay", price=Price(free=True))
    model, _ = catalog.add_model(session, spec)
    return int(catalog.default_method(session, int(model.id or 0)).id or 0)


def start_study(session: Session, benchmark: Benchmark, pks: list[int]) -> int:
    """One study over the methods to be estimated."""
    request = studies.StudyRequest(int(benchmark.id or 0), pks, "uniform", "linear-gaussian")
    study = studies.create(session, request)
    assert study is not None
    return int(study.id or 0)


def estimate(benchmark: Benchmark, study: int, pk: int, step: int, prompts: int) -> Estimate:
    """An estimate with a plausible interval."""
    score = 0.3 + 0.5 * (pk * 7919 % 1000) / 1000
    return Estimate(
        study_id=study,
        benchmark_id=int(benchmark.id or 0),
        method_id=pk,
        step=step,
        score=score,
        std=0.02,
        low=score - 0.04,
        high=score + 0.04,
        level=0.95,
        interval_kind="predicted",
        acquired=100,
        total=prompts,
        cost=1000,
    )


def clock(work: Callable[[], Any]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_build(database: Database, settings: Settings) -> Row:
    """Seconds to build, without a cache, with one, and after one more score; and to write as JSON."""

    def built(cache: Path | None) -> Any:
        with database.read() as session:
            return build(session, NAME, cache)

    def bump() -> None:
        with database.begin() as session:
            scores.bump_revision(session, int(catalog.find_benchmark(session, NAME).id or 0))

    cold = clock(lambda: built(None))
    built(settings.cache_dir)
    warm = clock(lambda: built(settings.cache_dir))
    bump()
    after = clock(lambda: built(settings.cache_dir))
    board = built(settings.cache_dir)
    text = clock(lambda: json.dumps(render.as_dict(board)))
    return tuple(f"{seconds:.2f} s" for seconds in (cold, warm, after, text))


def measure_pages(database: Database, settings: Settings, seconds: float) -> list[Row]:
    """Latency of page and JSON under concurrent readers, idle and with a study running."""
    server = SPAWN.Process(target=serve, args=(settings, "127.0.0.1", PORT), daemon=True)
    server.start()
    rows: list[Row] = []
    try:
        wait_for_server()
        for writing in (False, True):
            stop = SPAWN.Event()
            writer = SPAWN.Process(target=write, args=(settings.database, stop), daemon=True)
            if writing:
                writer.start()
            for name, path in PATHS.items():
                before = processor_seconds(server.pid)
                waits, status = load(path, seconds)
                used = (processor_seconds(server.pid) - before) / len(waits) * 1e3
                p50, p95, p99 = np.percentile(waits, [50, 95, 99]) * 1e3
                load_now = os.getloadavg()[0]
                rows.append(
                    (
                        name,
                        "study running" if writing else "idle",
                        f"{len(waits) / seconds:.0f}",
                        *(f"{p:.0f}" for p in (p50, p95, p99)),
                        f"{used:.1f}",
                        f"{load_now:.1f}",
                    )
                )
                print(rows[-1], status, flush=True)
            stop.set()
            if writing:
                writer.join()
    finally:
        server.terminate()
        server.join()
    return rows


def processor_seconds(pid: int | None) -> float:
    """User and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_server() -> None:
    """Wait until the server answers."""
    for _ in range(300):
        try:
            httpx.get(f"http://127.0.0.1:{PORT}/benchmarks/{NAME}", timeout=60)
        except httpx.ConnectError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("the server did not start")


def write(url: str, stop: Any) -> None:
    """Store a score and an estimate every half second, as a running study does."""
    database = Database(url)
    for cell in cells(database):
        if stop.wait(0.5):
            return
        row, prompts = cell
        with database.begin() as session:
            benchmark = catalog.find_benchmark(session, NAME)
            scores.add_scores(session, [row])
            scores.bump_revision(session, int(benchmark.id or 0))
            step = time.time_ns() % 2**31
            estimates.add(session, [estimate(benchmark, 1, row[2], step, prompts)])


def cells(database: Database) -> Iterator[tuple[tuple[Any, ...], int]]:
    """New cells of the first studied method."""
    with database.read() as session:
        dataset = session.exec(select(Dataset)).first()
        method = session.exec(select(Method.id)).first()
        keys = sorted(session.exec(select(Prompt.id)).all())
    assert dataset is not None
    for key in keys[100:]:
        yield (dataset.id, dataset.scorer_id, method, key, 1.0, Origin.ACQUIRED, None), len(keys)


def load(path: str, seconds: float) -> tuple[list[float], dict[int, int]]:
    """What `READERS` readers in a process of their own waited for, and which statuses they were given."""
    with SPAWN.Pool(1) as pool:
        return pool.apply(read, (path, seconds))


def read(path: str, seconds: float) -> tuple[list[float], dict[int, int]]:
    """Seconds that each request took, over threads that ask over one connection each, without a pause."""
    waits: list[float] = []
    statuses: dict[int, int] = {}
    until = time.perf_counter() + seconds

    def reader() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        while time.perf_counter() < until:
            start = time.perf_counter()
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            answer.read()
            waits.append(time.perf_counter() - start)
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
        connection.close()

    threads = [threading.Thread(target=reader) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}, statuses
    return waits, statuses


if __name__ == "__main__":
    main()
