"""Score matrices: loaded through driver rows into numpy, cached until the benchmark's revision moves on."""

from __future__ import annotations

import json
import tempfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, text
from sqlmodel import Session, col, select

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix, ScoreType, prompt_weights
from storage.tables import Benchmark, Dataset, Method, Prompt

__all__ = ["BenchmarkColumns", "StoredMatrix", "load_columns", "load_matrix", "load_rows"]

CACHE_FORMAT = 1


@dataclass(frozen=True)
class BenchmarkColumns:
    """The columns of a benchmark's score matrix, in the order in which the prompts were added.

    Prompts are never removed, so columns that are added later come last: what was learned of the first
    columns stays true of them, and an estimator fitted before can be fitted on from there.

    Attributes:
        benchmark_id: The benchmark.
        prompts_revision: Which state of its prompts this is.
        prompt_pks: (N,) primary keys of the prompts, ascending.
        prompt_keys: N prompt ids as given, or all as "dataset/key" where two datasets share one.
        dataset_pks: (D,) primary keys of the datasets.
        scorer_pks: (D,) primary key of each dataset's scorer.
        datasets: D dataset names.
        dataset_index: (N,) dataset of each prompt.
        weights: (N,) prompt weights, summing to 1.
        score_types: D score types.
    """

    benchmark_id: int
    prompts_revision: int
    prompt_pks: NDArray[np.int64]
    prompt_keys: tuple[str, ...]
    dataset_pks: NDArray[np.int64]
    scorer_pks: NDArray[np.int64]
    datasets: tuple[str, ...]
    dataset_index: NDArray[np.intp]
    weights: NDArray[np.float64]
    score_types: tuple[ScoreType, ...]

    @property
    def n_prompts(self) -> int:
        """N."""
        return len(self.prompt_pks)

    @cached_property
    def position(self) -> dict[int, int]:
        """Column of each prompt, by primary key."""
        return {int(pk): j for j, pk in enumerate(self.prompt_pks)}


@dataclass(frozen=True)
class StoredMatrix:
    """A score matrix together with the primary keys of its rows and columns."""

    matrix: ScoreMatrix
    method_pks: NDArray[np.int64]
    columns: BenchmarkColumns


def load_columns(session: Session, benchmark: Benchmark) -> BenchmarkColumns:
    """Read the benchmark's datasets and prompts.

    Raises:
        BadInputError: The benchmark has no prompts.
    """
    datasets = session.exec(
        select(Dataset).where(Dataset.benchmark_id == benchmark.id).order_by(col(Dataset.id))
    ).all()
    place = {dataset.id: i for i, dataset in enumerate(datasets)}
    query = (
        select(Prompt.id, Prompt.key, Prompt.dataset_id)
        .where(col(Prompt.dataset_id).in_(list(place)))
        .order_by(col(Prompt.id))
    )
    found = session.exec(query).all()
    pks, keys, index = [row[0] for row in found], [row[1] for row in found], [place[row[2]] for row in found]
    if not pks:
        raise BadInputError(
            f"benchmark '{benchmark.name}' has no prompts", "add some: assay benchmark add-prompts"
        )
    assert benchmark.id is not None
    if len(set(keys)) < len(keys):
        keys = [f"{datasets[i].name}/{key}" for i, key in zip(index, keys, strict=True)]
    dataset_index = np.array(index, dtype=np.intp)
    return BenchmarkColumns(
        benchmark_id=benchmark.id,
        prompts_revision=benchmark.prompts_revision,
        prompt_pks=np.array(pks, dtype=np.int64),
        prompt_keys=tuple(keys),
        dataset_pks=np.array([dataset.id for dataset in datasets], dtype=np.int64),
        scorer_pks=np.array([dataset.scorer_id for dataset in datasets], dtype=np.int64),
        datasets=tuple(dataset.name for dataset in datasets),
        dataset_index=dataset_index,
        weights=prompt_weights(dataset_index, np.array([dataset.weight for dataset in datasets])),
        score_types=tuple(ScoreType(dataset.score_type) for dataset in datasets),
    )


def load_rows(
    session: Session, columns: BenchmarkColumns, method_pks: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(R, N) scores of a few methods, read fresh (what a study sees); NaN = missing."""
    values = np.full((len(method_pks), columns.n_prompts), np.nan)
    for row, method_pk in enumerate(method_pks):
        for d in range(len(columns.datasets)):
            found = _read(session, columns, d, int(method_pk))
            at = _positions(columns, d, found["prompt"])
            values[row, at] = found["value"]
    return values


def load_matrix(session: Session, benchmark: Benchmark, cache: Path | None = None) -> StoredMatrix:
    """All scores of a benchmark as one dense matrix, rows in order of method id.

    Args:
        session: A reading session (one snapshot: the revision read belongs to the scores read).
        benchmark: The benchmark; its revision decides whether the cached matrix is still true.
        cache: Folder for cached matrices; None = no cache.
    """
    columns_of = _cache_path(cache, benchmark)
    session.refresh(benchmark)
    if columns_of is not None and (hit := _read_cache(columns_of, benchmark)) is not None:
        return hit
    columns = load_columns(session, benchmark)
    blocks = [_read(session, columns, d, None) for d in range(len(columns.datasets))]
    method_pks = np.unique(np.concatenate([block["method"] for block in blocks])).astype(np.int64)
    values = np.full((len(method_pks), columns.n_prompts), np.nan, dtype=np.float32)
    for d, block in enumerate(blocks):
        rows = np.searchsorted(method_pks, block["method"])
        values[rows, _positions(columns, d, block["prompt"])] = block["value"]
    stored = StoredMatrix(_to_matrix(session, columns, method_pks, values), method_pks, columns)
    if columns_of is not None:
        _write_cache(columns_of, benchmark, stored)
    return stored


def _to_matrix(
    session: Session, columns: BenchmarkColumns, method_pks: NDArray[np.int64], values: NDArray[np.float32]
) -> ScoreMatrix:
    names: dict[Any, str] = dict(session.exec(select(Method.id, Method.name)).all())
    return ScoreMatrix(
        values=values,
        method_ids=tuple(names[int(pk)] for pk in method_pks),
        prompt_ids=columns.prompt_keys,
        datasets=columns.datasets,
        dataset_index=columns.dataset_index,
        weights=columns.weights,
        score_types=columns.score_types,
    )


ROW = np.dtype([("method", np.int64), ("prompt", np.int64), ("value", np.float64)])


def _read(session: Session, columns: BenchmarkColumns, d: int, method_pk: int | None) -> NDArray[Any]:
    """One dataset's scores under its scorer, as a structured array, without building objects per row."""
    where = "dataset_id = :dataset AND scorer_id = :scorer"
    values = {"dataset": int(columns.dataset_pks[d]), "scorer": int(columns.scorer_pks[d])}
    if method_pk is not None:
        where += " AND method_id = :method"
        values["method"] = method_pk
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        return _read_packed(connection, where, values)
    query = f"SELECT method_id, prompt_id, value FROM score WHERE {where}"  # noqa: S608
    cursor: Any = connection.execute(text(query), values).cursor
    return np.fromiter(cursor, dtype=ROW)


PACKED = np.dtype([("prompt", ">i4"), ("value", ">f8")])


def _read_packed(connection: Connection, where: str, values: dict[str, int]) -> NDArray[Any]:
    """The same with each method's scores packed into bytes by the server: few messages, not millions."""
    query = (
        "SELECT method_id, string_agg(int4send(prompt_id) || float8send(value), ''::bytea)"  # noqa: S608
        f" FROM score WHERE {where} GROUP BY method_id"
    )
    packed = connection.execute(text(query), values).all()
    rows = np.frombuffer(b"".join(bytes(content) for _, content in packed), dtype=PACKED)
    found = np.empty(len(rows), dtype=ROW)
    counts = [len(content) // PACKED.itemsize for _, content in packed]
    found["method"] = np.repeat(np.array([method for method, _ in packed], dtype=np.int64), counts)
    found["prompt"], found["value"] = rows["prompt"], rows["value"]
    return found


def _positions(columns: BenchmarkColumns, d: int, prompt_pks: NDArray[np.int64]) -> NDArray[np.intp]:
    inside = np.flatnonzero(columns.dataset_index == d)
    return inside[np.searchsorted(columns.prompt_pks[inside], prompt_pks)]


# --- cache -------------------------------------------------------------------------------------------------


def _cache_path(cache: Path | None, benchmark: Benchmark) -> Path | None:
    return None if cache is None else cache / f"matrix-{benchmark.id}.npz"


def _read_cache(path: Path, benchmark: Benchmark) -> StoredMatrix | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            if about["key"] != _cache_key(benchmark):
                return None
            return _from_cache(about, stored)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        # Absent, of an older format, or half a file: made anew.
        return None


def _from_cache(about: dict[str, Any], stored: Any) -> StoredMatrix:
    columns = BenchmarkColumns(
        benchmark_id=about["key"][1],
        prompts_revision=about["key"][3],
        prompt_pks=stored["prompt_pks"],
        prompt_keys=tuple(about["prompt_keys"]),
        dataset_pks=stored["dataset_pks"],
        scorer_pks=stored["scorer_pks"],
        datasets=tuple(about["datasets"]),
        dataset_index=stored["dataset_index"],
        weights=stored["weights"],
        score_types=tuple(ScoreType(kind) for kind in about["score_types"]),
    )
    matrix = ScoreMatrix(
        values=stored["values"],
        method_ids=tuple(about["method_ids"]),
        prompt_ids=columns.prompt_keys,
        datasets=columns.datasets,
        dataset_index=columns.dataset_index,
        weights=columns.weights,
        score_types=columns.score_types,
    )
    return StoredMatrix(matrix, stored["method_pks"], columns)


def _write_cache(path: Path, benchmark: Benchmark, stored: StoredMatrix) -> None:
    columns = stored.columns
    about = {
        "key": _cache_key(benchmark),
        "prompt_keys": columns.prompt_keys,
        "datasets": columns.datasets,
        "score_types": [str(kind) for kind in columns.score_types],
        "method_ids": stored.matrix.method_ids,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed, so that a reader never sees half a file.
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        np.savez(
            file,
            about=np.array(json.dumps(about)),
            values=stored.matrix.values,
            method_pks=stored.method_pks,
            prompt_pks=columns.prompt_pks,
            dataset_pks=columns.dataset_pks,
            scorer_pks=columns.scorer_pks,
            dataset_index=columns.dataset_index,
            weights=columns.weights,
        )
    Path(file.name).replace(path)


def _cache_key(benchmark: Benchmark) -> list[Any]:
    created = benchmark.created_at.isoformat()  # a new database may reuse the id
    return [CACHE_FORMAT, benchmark.id, benchmark.revision, benchmark.prompts_revision, created]
