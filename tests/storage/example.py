"""A small benchmark in a database, and small files to import."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assay.specs import DatasetSpec, ModelSpec, PromptSpec
from storage import catalog, jobs, studies
from storage.database import Database


@dataclass(frozen=True)
class Example:
    """Keys of the rows that `small_benchmark` makes."""

    benchmark_id: int
    scorer_id: int
    dataset_id: int
    method_ids: list[int]
    prompt_ids: list[int]
    study_id: int

    def new_jobs(self, count: int) -> list[jobs.NewJob]:
        """Jobs for the first `count` prompts of the first method."""
        return [jobs.NewJob(self.method_ids[0], p, self.scorer_id) for p in self.prompt_ids[:count]]


def small_benchmark(db: Database, *, n_prompts: int = 12, caps: dict[str, int] | None = None) -> Example:
    """One benchmark with one dataset, two models and one study of the first."""
    with db.begin() as session:
        benchmark, _ = catalog.add_benchmark(session, "small")
        dataset = catalog.add_dataset(session, benchmark, DatasetSpec(name="sums"))
        prompts = [PromptSpec(id=f"p{i}", text=f"What is {i} + {i}?") for i in range(n_prompts)]
        catalog.add_prompts(session, dataset, prompts)
        models = [
            catalog.add_model(session, ModelSpec(name=name, base_url="http://127.0.0.1:1/v1"))[0]
            for name in ("first", "second")
        ]
        methods = [catalog.default_method(session, model.id or 0) for model in models]
        request = studies.StudyRequest(benchmark.id or 0, [methods[0].id or 0], "uniform", "aggregate")
        study = studies.create(session, request if caps is None else _with_caps(request, caps))
        assert study is not None
        keys = session.connection().exec_driver_sql("SELECT id FROM prompt ORDER BY id").scalars()
        return Example(
            benchmark_id=benchmark.id or 0,
            scorer_id=dataset.scorer_id,
            dataset_id=dataset.id or 0,
            method_ids=[method.id or 0 for method in methods],
            prompt_ids=list(keys),
            study_id=study.id or 0,
        )


def _with_caps(request: studies.StudyRequest, caps: dict[str, int]) -> studies.StudyRequest:
    return studies.StudyRequest(**{**vars(request), "caps": caps})


def write_matrix_folder(
    folder: Path,
    values: np.ndarray,
    *,
    datasets: list[str] | None = None,
    splits: list[str] | None = None,
    outputs: bool = False,
    texts: list[str] | None = None,
) -> Path:
    """A matrix folder of `values` with models m0.., prompts p0.. and texts."""
    folder.mkdir(parents=True)
    m, n = values.shape
    np.savez(folder / "scores.npz", scores=values)
    names = datasets or ["all"] * n
    said = texts or [f"prompt number {j}" for j in range(n)]
    lines = [{"id": f"p{j}", "dataset": names[j], "text": said[j]} for j in range(n)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [f"m{i},{(splits or ['train'] * m)[i]},llama\n" for i in range(m)]
    (folder / "models.csv").write_text("model,split,family\n" + "".join(rows))
    if outputs:
        answers = [
            {"model": f"m{i}", "outputs": [None if j == 0 else f"{i} to {j}" for j in range(n)]}
            for i in range(m)
        ]
        (folder / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    return folder
