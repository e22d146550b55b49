"""Export of a benchmark as a matrix folder, which can be imported, replayed and backtested."""

from __future__ import annotations

import csv
import json
import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlmodel import Session, col, select

from assay.errors import BadInputError
from storage import catalog
from storage.database import Database
from storage.matrices import StoredMatrix, load_matrix
from storage.tables import Dataset, Method, Model, Output, Prompt

__all__ = ["ExportReport", "export_matrix_folder"]


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        models: Rows.
        prompts: Columns.
        scores: Scores that are there.
        outputs: Outputs that are there.
    """

    models: int
    prompts: int
    scores: int
    outputs: int


def export_matrix_folder(db: Database, benchmark_name: str, path: Path | str) -> ExportReport:
    """Write a benchmark's scores, prompts, models and outputs as a matrix folder, whole or not at all.

    A row is a method that has scores; its name is the method's. Where two datasets share a prompt
    id, all ids are written as "dataset/id", since a matrix folder's ids are unique.

    Args:
        db: The database.
        benchmark_name: The benchmark.
        path: The folder to make; it must not be there yet, or be empty.

    Raises:
        UsageError: There is no such benchmark.
        BadInputError: The folder has something in it or cannot be written, or the benchmark has no prompts.
        StorageError: The database cannot be used.
    """
    target = Path(path)
    with db.read() as session, _new_folder(target) as folder:
        stored = load_matrix(session, catalog.find_benchmark(session, benchmark_name))
        _write_scores(folder / "scores.npz", stored)
        _write_weights(folder / "datasets.csv", session, stored)
        _write_models(folder / "models.csv", session, stored)
        _write_prompts(folder / "prompts.jsonl", session, stored)
        outputs = _write_outputs(folder / "outputs.jsonl.xz", session, stored)
        scores = int(stored.matrix.observed.sum())
    return ExportReport(stored.matrix.n_methods, stored.matrix.n_prompts, scores, outputs)


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target that takes its place at the end, or goes away."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInputError(f"{target} is there already", "choose another folder, or remove this one first")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        building.chmod(0o755)
    except OSError as error:
        raise BadInputError(f"{target} cannot be written: {error.strerror}") from None
    try:
        yield building
        building.replace(target)
    except OSError as error:
        raise BadInputError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_scores(path: Path, stored: StoredMatrix) -> None:
    """Integers with -1 where all scores are 0 or 1 (an eighth of the size), else floats with NaN."""
    values = stored.matrix.values
    missing = np.isnan(values)
    if np.isin(values[~missing], (0.0, 1.0)).all():
        values = np.where(missing, -1, values).astype(np.int8)
    np.savez_compressed(path, scores=values)


def _write_weights(path: Path, session: Session, stored: StoredMatrix) -> None:
    """One line per dataset; no file where all weigh the same, as they do without one."""
    query = select(Dataset.name, Dataset.weight).where(Dataset.benchmark_id == stored.columns.benchmark_id)
    rows = session.exec(query.order_by(col(Dataset.id))).all()
    if all(weight == 1.0 for _, weight in rows):
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["dataset", "weight"])
        writer.writerows((name, repr(weight)) for name, weight in rows)


def _write_models(path: Path, session: Session, stored: StoredMatrix) -> None:
    query = select(Method.id, Model).join(Model, col(Model.id) == col(Method.model_id))
    attributes = {pk: model.attributes for pk, model in session.exec(query).all()}
    rows = [attributes[pk] for pk in stored.method_pks.tolist()]
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "model"))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["model", *columns], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for name, row in zip(stored.matrix.method_ids, rows, strict=True):
            writer.writerow({**row, "model": name})


def _write_prompts(path: Path, session: Session, stored: StoredMatrix) -> None:
    """One line per column, as `assay benchmark add-prompts` reads them, with target, choices and fields."""
    benchmark_id = stored.columns.benchmark_id
    query = select(Prompt.id, Prompt.text, Prompt.fields).join(
        Dataset, col(Dataset.id) == col(Prompt.dataset_id)
    )
    rows = session.exec(query.where(Dataset.benchmark_id == benchmark_id)).all()
    prompts = {pk: (text, fields) for pk, text, fields in rows}
    with path.open("w", encoding="utf-8") as file:
        columns = zip(
            stored.columns.prompt_pks.tolist(),
            stored.columns.prompt_keys,
            stored.columns.dataset_index,
            strict=True,
        )
        for pk, key, d in columns:
            text, fields = prompts[pk]
            line = {"id": key, "dataset": stored.columns.datasets[d], "text": text}
            named = {name: fields[name] for name in ("target", "choices") if name in fields}
            free = {name: value for name, value in fields.items() if name not in named}
            _write_line(file, line | named | ({"fields": free} if free else {}))


def _write_outputs(path: Path, session: Session, stored: StoredMatrix) -> int:
    """One line per method that has outputs, null where there is none; returns how many there are."""
    position = {pk: j for j, pk in enumerate(stored.columns.prompt_pks.tolist())}
    count = 0
    with lzma.open(path, "wt", encoding="utf-8", preset=1) as file:  # 4 times as fast as the default
        for pk, name in zip(stored.method_pks.tolist(), stored.matrix.method_ids, strict=True):
            found = session.exec(select(Output.prompt_id, Output.text).where(Output.method_id == pk)).all()
            texts: list[str | None] = [None] * len(position)
            for prompt_id, text in found:
                if prompt_id in position:
                    texts[position[prompt_id]] = text
            written = sum(text is not None for text in texts)
            if written:
                _write_line(file, {"model": name, "outputs": texts})
            count += written
    if not count:
        path.unlink()
    return count


def _write_line(file: Any, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
