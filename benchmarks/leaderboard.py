"""A leaderboard of 2,000 models x 12,032 prompts: seconds to build it, and what 20 readers of the page wait.

    python -m benchmarks.leaderboard [--methods 2000] [--prompts 12032] [--seconds 20] [--data FOLDER]

Nine in ten models are complete, one in ten has an estimate. A server process answers 20 concurrent readers
of page and JSON while a writer stores a score and an estimate every 0.5 s, as a running study does.
"""

from __future__ import annotations

import argparse
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
from storage import catalog, estimates, scores, studies
from storage.database import Database
from storage.tables import Benchmark, Dataset, Estimate, Method, Origin, Prompt

NAME = "large"
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
    measure_build(database, settings)
    measure_pages(database, settings, options.seconds)


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


def measure_build(database: Database, settings: Settings) -> None:
    """Seconds to build and render, without a cache, with one, and after one more score."""

    def built(cache: Path | None) -> Any:
        with database.read() as session:
            return build(session, NAME, cache)

    def bump() -> None:
        with database.begin() as session:
            scores.bump_revision(session, int(catalog.find_benchmark(session, NAME).id or 0))

    print(f"build, nothing cached: {clock(lambda: built(None)):.2f} s")
    built(settings.cache_dir)
    print(f"build, counts cached: {clock(lambda: built(settings.cache_dir)):.3f} s")
    bump()
    print(f"build, after a new score: {clock(lambda: built(settings.cache_dir)):.3f} s")
    board = built(settings.cache_dir)
    print(f"JSON text: {clock(lambda: json.dumps(render.as_dict(board))):.3f} s")


def measure_pages(database: Database, settings: Settings, seconds: float) -> None:
    """Latency of page and JSON under concurrent readers, idle and with a study running."""
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(settings, "127.0.0.1", PORT), daemon=True
    )
    server.start()
    try:
        wait_for_server()
        for writing in (False, True):
            stop = threading.Event()
            writer = threading.Thread(target=write, args=(database, stop if writing else None))
            writer.start()
            for kind in ("", ".json"):
                before = processor_seconds(server.pid)
                waits = read(f"http://127.0.0.1:{PORT}/benchmarks/{NAME}{kind}", seconds)
                p50, p95 = np.percentile(waits, [50, 95]) * 1e3
                used = (processor_seconds(server.pid) - before) / len(waits) * 1e3
                print(
                    f"{kind or 'page'}, {READERS} readers, {'study running' if writing else 'idle'}:"
                    f" {len(waits) / seconds:.0f} per s, median {p50:.0f} ms, 95 % {p95:.0f} ms,"
                    f" server's processor {used:.1f} ms each"
                )
            stop.set()
            writer.join()
    finally:
        server.terminate()
        server.join()


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


def write(database: Database, stop: threading.Event | None) -> None:
    """Store a score and an estimate every half second, as a running study does."""
    if stop is None:
        return
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


def read(url: str, seconds: float) -> list[float]:
    """Seconds that each request took, over `READERS` threads that ask without a pause."""
    waits: list[float] = []
    until = time.perf_counter() + seconds

    def reader() -> None:
        with httpx.Client(timeout=60) as client:
            while time.perf_counter() < until:
                start = time.perf_counter()
                client.get(url).raise_for_status()
                waits.append(time.perf_counter() - start)

    threads = [threading.Thread(target=reader) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


if __name__ == "__main__":
    main()
