"""Real scores through the whole system: history imported, five unseen models evaluated with 100 prompts each.

Broker, agent, two workers and a trainer are processes apart, on SQLite with the bundled broker and on
PostgreSQL with the Redis server of this machine. The estimates are printed beside the true scores.

Run with `python -m benchmarks.real_input --data ../shared/data/openllm`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from sqlmodel import select

from agent.supervisor import Supervisor, embedded_children
from assay.matrix_folder import MatrixFolder, read_matrix_folder
from assay.settings import Settings
from assay.specs import ModelSpec
from benchmarks.databases import KINDS, fresh_database
from benchmarks.report import markdown_table, update_section
from storage import catalog, estimates
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.tables import Estimate, Method, Study, StudyState

BENCHMARK = "openllm"
MODELS = 5
PROMPTS = 100
REDIS = "redis://127.0.0.1:6379/9"
PATIENCE_S = 900.0
DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "openllm"


def evaluate(folder: MatrixFolder, models: list[str], settings: Settings) -> tuple[list[Estimate], float]:
    """Import the history, register the models, wait; returns the final estimates and the seconds it took."""
    database = Database(settings.database)
    database.upgrade()
    import_matrix_folder(database, folder.path, BENCHMARK, rows="train")
    with database.begin() as session:
        for name in models:
            spec = ModelSpec(name=name, backend="replay", matrix=str(folder.path.absolute()))
            catalog.add_model(session, spec)
    children = embedded_children(settings, workers=2, web=False, port=settings.web_port)
    supervisor = Supervisor(children, settings, settings.environment())
    started = time.monotonic()
    try:
        supervisor.start()
        found = _wait(database, supervisor)
    finally:
        supervisor.stop()
        database.close()
    return found, time.monotonic() - started


def _wait(database: Database, supervisor: Supervisor) -> list[Estimate]:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        supervisor.watch()
        with database.read() as session:
            studies = session.exec(select(Study)).all()
            if len(studies) == MODELS and all(study.state == StudyState.DONE for study in studies):
                return [estimates.history(session, study.id or 0)[-1] for study in studies]
        time.sleep(0.2)
    raise SystemExit(f"the studies did not finish; see {supervisor.logs}")


def _rows(
    kind: str, folder: MatrixFolder, settings: Settings, found: list[Estimate]
) -> tuple[list[list[object]], float]:
    database = Database(settings.database)
    with database.read() as session:
        names = {method.id: method.name for method in session.exec(select(Method)).all()}
    database.close()
    truth = dict(zip(folder.matrix.method_ids, folder.matrix.benchmark_scores(), strict=True))
    rows: list[list[object]] = []
    for estimate in found:
        name = names[estimate.method_id]
        rows.append(
            [
                kind,
                name,
                f"{estimate.score:.4f}",
                f"{estimate.low:.4f} to {estimate.high:.4f}",
                estimate.interval_kind,
                f"{truth[name]:.4f}",
                f"{abs(estimate.score - truth[name]):.4f}",
                "yes" if estimate.low <= truth[name] <= estimate.high else "no",
                estimate.acquired,
            ]
        )
    return rows, float(np.mean([abs(e.score - truth[names[e.method_id]]) for e in found]))


def main() -> None:
    """Run on the databases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--policy", default=None)
    parser.add_argument("--estimator", default=None)
    options = parser.parse_args()
    folder = read_matrix_folder(options.data)
    models = [folder.matrix.method_ids[i] for i in folder.split("test")[:MODELS]]
    chosen = {key: value for key in ("policy", "estimator") if (value := getattr(options, key))}
    table: list[list[object]] = []
    notes = []
    for kind in KINDS if options.database == "both" else [options.database]:
        with fresh_database(kind) as url, tempfile.TemporaryDirectory() as place:
            if url is None:
                continue
            settings = Settings(
                data_dir=Path(place),
                database_url=url or f"sqlite:///{place}/assay.db",
                broker_url=REDIS if kind == "postgresql" else "",
                max_prompts=PROMPTS,
                **chosen,
            )
            found, seconds = evaluate(folder, models, settings)
            rows, error = _rows(kind, folder, settings, found)
            table += rows
            notes.append(
                f"{kind}: mean absolute error {error:.4f}, {seconds:.0f} s from start to last estimate."
            )
            print("\n".join(" | ".join(map(str, row)) for row in rows))
            print(notes[-1])
    header = ["database", "model", "estimate", "95 % interval", "kind", "true", "error", "inside", "bought"]
    settings = Settings(**chosen)
    update_section(
        "Real input, end to end",
        "python -m benchmarks.real_input",
        markdown_table(header, table),
        data=f"openllm: 1,300 train rows as history, its first {MODELS} test models, {PROMPTS} prompts each",
        seeds="0",
        notes=f"Policy {settings.policy}, estimator {settings.estimator}. " + " ".join(notes),
    )


if __name__ == "__main__":
    main()
