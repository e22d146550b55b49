"""A live study of the objective "best": twenty simulated methods, real Celery workers, few calls.

Run with `python -m benchmarks.live_best`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from agent.commands.study import describe
from agent.supervisor import Supervisor, embedded_children
from assay.settings import Settings
from assay.specs import ModelSpec
from benchmarks.report import markdown_table, update_section
from storage import catalog, studies
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.tables import StudyState

METHODS, PROMPTS, HISTORY = 20, 500, 60
SHARE = 0.15
PATIENCE_S = 300.0


def write_world(folder: Path, seed: int) -> np.ndarray:
    """A matrix folder of history and contenders; returns the contenders' true scores."""
    import json

    rng = np.random.default_rng(seed)
    rows = HISTORY + METHODS
    ability, difficulty = rng.normal(0.3, 0.9, (rows, 1)), rng.normal(0.0, 1.2, (1, PROMPTS))
    slopes = rng.uniform(0.6, 1.8, (1, PROMPTS))
    scores = (rng.random((rows, PROMPTS)) < 1 / (1 + np.exp(-slopes * (ability - difficulty)))).astype(
        np.int8
    )
    folder.mkdir(parents=True)
    np.savez(folder / "scores.npz", scores=scores)
    lines = [json.dumps({"id": f"p{j}", "dataset": "all", "text": f"Prompt {j}"}) for j in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    splits = ["train"] * HISTORY + ["test"] * METHODS
    models = [f"m{i},{split}" for i, split in enumerate(splits)]
    (folder / "models.csv").write_text("model,split\n" + "\n".join(models) + "\n", encoding="utf-8")
    return scores[HISTORY:].mean(axis=1)


def run(policy: str, estimator: str, seed: int) -> list[object]:
    """One live study; returns a row of the table."""
    with tempfile.TemporaryDirectory() as place:
        truth = write_world(Path(place) / "matrix", seed)
        settings = Settings(data_dir=Path(place) / "data", database_url="", broker_url="")
        database = Database(settings.database)
        settings.data_dir.mkdir()
        database.create_or_check()
        import_matrix_folder(database, Path(place) / "matrix", "contest", rows="train")
        study = _enter(database, Path(place) / "matrix", policy, estimator, seed)
        children = embedded_children(settings, workers=2, web=False, port=1)
        supervisor = Supervisor(children, settings, settings.environment())
        started = time.monotonic()
        try:
            supervisor.start()
            found = _wait(database, supervisor, study)
        finally:
            supervisor.stop()
            database.close()
    best = {f"m{HISTORY + int(i)}" for i in np.flatnonzero(truth == truth.max())}
    regret = float(truth.max() - truth[int(found["winner"][1:]) - HISTORY])
    right = "yes" if found["winner"] in best else f"no, {regret:.4f} worse"
    calls = f"{found['done']} of {METHODS * PROMPTS} ({found['done'] / (METHODS * PROMPTS):.1%})"
    chance, seconds = f"{found['probability_best']:.2f}", f"{time.monotonic() - started:.0f}"
    return [policy, estimator, seed, right, calls, chance, seconds]


def _enter(database: Database, matrix: Path, policy: str, estimator: str, seed: int) -> int:
    with database.begin() as session:
        benchmark = catalog.find_benchmark(session, "contest")
        ids = []
        for i in range(HISTORY, HISTORY + METHODS):
            spec = ModelSpec(name=f"m{i}", backend="replay", matrix=str(matrix))
            model, _ = catalog.add_model(session, spec, announce=False)
            ids.append(catalog.default_method(session, model.id or 0).id or 0)
        request = studies.StudyRequest(
            benchmark_id=benchmark.id or 0,
            method_ids=ids,
            objective="best",
            policy=policy,
            estimator=estimator,
            seed=seed,
            batch_size=50,
            max_prompts=int(SHARE * METHODS * PROMPTS),
            until_confidence=0.99,
            caps={"usd": 1_000_000},
        )
        study = studies.create(session, request)
        assert study is not None
        return int(study.id or 0)


def _wait(database: Database, supervisor: Supervisor, study: int) -> dict[str, object]:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        supervisor.watch()
        with database.read() as session:
            found = describe(session, study)
        if found["state"] == StudyState.DONE:
            return found
        time.sleep(0.2)
    raise SystemExit(f"the study did not finish: {found['state']} {found['reason']}; see {supervisor.logs}")


def main() -> None:
    """Run both kinds of policy on a few worlds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    pairs = [("ucb-e", "aggregate"), ("top-two", "mirt")]
    rows = []
    for policy, estimator in pairs:
        for seed in range(options.seeds):
            rows.append(run(policy, estimator, seed))
            print(*rows[-1], sep=" | ", flush=True)
    header = ["policy", "estimator", "seed", "best found", "calls", "its probability", "seconds"]
    update_section(
        'Live study of the objective "best"',
        "python -m benchmarks.live_best",
        markdown_table(header, rows),
        data=f"generated: {METHODS} simulated methods, {PROMPTS} prompts, {HISTORY} history methods",
        seeds=", ".join(map(str, range(options.seeds))),
        notes=f"At most {SHARE:.0%} of the calls; stops at probability 0.99. Two real Celery workers.",
    )


if __name__ == "__main__":
    main()
