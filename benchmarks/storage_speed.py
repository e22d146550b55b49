"""How fast scores are imported, loaded and loaded again, on SQLite and PostgreSQL.

python -m benchmarks.storage_speed [--repeats 3] [--postgres URL]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from sqlalchemy import make_url, text

from assay.errors import StorageError
from benchmarks.report import markdown_table, update_section
from storage import catalog
from storage.database import Database
from storage.importing import import_long_table, import_matrix_folder
from storage.matrices import StoredMatrix, load_matrix

METHODS, PROMPTS, SEED = 2000, 500, 0
POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"
#: What is measured, and the seconds that it may take at most.
TARGETS = {
    "import a matrix folder": 8.0,
    "import it again": None,
    "import a long table (CSV)": None,
    "load as a dense matrix": 2.0,
    "load, cached": 0.1,
}
Times = dict[str, list[tuple[float, float]]]


def main() -> None:
    """Measure both databases and write the section of docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--postgres", default=os.environ.get("ASSAY_TEST_POSTGRES_URL", POSTGRES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _write_input(Path(folder))
        results = {
            "SQLite": _measure(arguments.repeats, Path(folder), _sqlite),
            "PostgreSQL": _measure(arguments.repeats, Path(folder), lambda _: _postgres(arguments.postgres)),
        }
    table = markdown_table(
        ["step", *[f"{name}: {what}" for name in results for what in ("seconds", "CPU here")], "at most"],
        [[step, *_cells(results, step), "-" if most is None else most] for step, most in TARGETS.items()],
    )
    section = update_section(
        "Storage: one million scores",
        "python -m benchmarks.storage_speed",
        table,
        data=f"{METHODS} x {PROMPTS} random binary scores in 5 datasets (speed only)",
        seeds=str(SEED),
        notes=f"Median (slowest) of {arguments.repeats} runs in one process, each in a fresh database."
        f" Load average when it ended: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; CPU here = CPU"
        " seconds of this process, without the server's.",
    )
    print(section)


def _cells(results: dict[str, Times], step: str) -> Iterator[str]:
    for times in results.values():
        wall, cpu = zip(*times[step], strict=True)
        yield f"{statistics.median(wall):.2f} ({max(wall):.2f})"
        yield f"{statistics.median(cpu):.2f}"


def _measure(repeats: int, folder: Path, fresh: Callable[[Path], AbstractContextManager[Database]]) -> Times:
    times: Times = {step: [] for step in TARGETS}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as place, fresh(Path(place)) as db:
            db.upgrade()
            cache = Path(place) / "cache"
            import_folder = partial(import_matrix_folder, db, folder / "matrix", "folder")
            steps: list[Callable[[], object]] = [
                import_folder,
                import_folder,
                partial(import_long_table, db, folder / "table.csv", "table"),
                partial(_load, db, cache),
                partial(_load, db, cache),
            ]
            for step, do in zip(TARGETS, steps, strict=True):
                times[step].append(_timed(do))
    return times


def _timed(do: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    do()
    return time.perf_counter() - wall, time.process_time() - cpu


def _load(db: Database, cache: Path) -> StoredMatrix:
    with db.read() as session:
        stored = load_matrix(session, catalog.find_benchmark(session, "folder"), cache)
    assert stored.matrix.values.shape == (METHODS, PROMPTS)
    return stored


@contextmanager
def _sqlite(folder: Path) -> Iterator[Database]:
    db = Database(f"sqlite:///{folder / 'assay.db'}")
    yield db
    db.close()


@contextmanager
def _postgres(url: str) -> Iterator[Database]:
    name = f"assay_speed_{uuid.uuid4().hex}"
    server = Database(url)
    try:
        with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
            db = Database(make_url(url).set(database=name).render_as_string(hide_password=False))
            yield db
            db.close()
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    except StorageError as error:
        raise SystemExit(f"error: {error}") from None
    finally:
        server.close()


def _write_input(folder: Path) -> None:
    """The same scores as a matrix folder and as a long table."""
    scores = np.random.default_rng(SEED).integers(0, 2, (METHODS, PROMPTS)).astype(np.int8)
    datasets = [f"dataset-{j % 5}" for j in range(PROMPTS)]
    matrix = folder / "matrix"
    matrix.mkdir()
    np.savez(matrix / "scores.npz", scores=scores)
    models = [f"model-{i}" for i in range(METHODS)]
    (matrix / "models.csv").write_text("model,family\n" + "".join(f"{m},any\n" for m in models))
    lines = [
        json.dumps({"id": f"prompt-{j}", "dataset": datasets[j], "text": f"Question number {j}?"})
        for j in range(PROMPTS)
    ]
    (matrix / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "dataset", "prompt_id", "score"])
        for i, model in enumerate(models):
            writer.writerows(
                (model, datasets[j], f"prompt-{j}", value) for j, value in enumerate(scores[i].tolist())
            )


if __name__ == "__main__":
    main()
