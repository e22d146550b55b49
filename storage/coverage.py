"""How far each method's row of a benchmark is filled, and the mean of what is there: without loading scores.

A leaderboard needs the exact score of complete rows only. The database counts and averages each (method,
dataset) in one ordered pass over the key; scores are never changed or deleted, so a row that was complete
stays complete, and only the others are counted again when the benchmark's revision moves on.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, func, text
from sqlmodel import Session, col, select

from storage.tables import Benchmark, Dataset, Method, Prompt

__all__ = ["Coverage", "load_coverage"]

CACHE_FORMAT = 1
CHUNK = 500  # method ids per query, far below any database's limit of parameters


@dataclass(frozen=True)
class Coverage:
    """Filled cells of a benchmark's score matrix, by method and dataset.

    Attributes:
        datasets: D dataset names.
        sizes: (D,) number of prompts.
        shares: (D,) weight of each dataset in the benchmark score; sums to 1, or all 0 without prompts.
        method_pks: (M,) primary keys of the methods that have any score, ascending.
        counts: (M, D) number of scores.
        sums: (M, D) sum of the scores.
    """

    datasets: tuple[str, ...]
    sizes: NDArray[np.int64]
    shares: NDArray[np.float64]
    method_pks: NDArray[np.int64]
    counts: NDArray[np.int64]
    sums: NDArray[np.float64]

    @property
    def n_prompts(self) -> int:
        """Number of prompts over all datasets."""
        return int(self.sizes.sum())

    @property
    def complete(self) -> NDArray[np.bool_]:
        """(M,) whether no score is missing on any prompt that has weight."""
        needed = self.shares > 0
        if not needed.any():
            return np.zeros(len(self.method_pks), dtype=bool)
        filled: NDArray[np.bool_] = np.all(self.counts[:, needed] >= self.sizes[needed], axis=1)
        return filled

    def exact_scores(self) -> NDArray[np.float64]:
        """(M,) benchmark score of complete rows; NaN for the others."""
        means = self.sums / np.maximum(self.counts, 1)
        scores: NDArray[np.float64] = np.where(self.complete, means @ self.shares, np.nan)
        return scores


def load_coverage(session: Session, benchmark: Benchmark, cache: Path | None = None) -> Coverage:
    """Count and average the benchmark's scores by method and dataset.

    Args:
        session: A reading session.
        benchmark: The benchmark; freshly read here.
        cache: Folder for what was counted before; None = count everything.
    """
    session.refresh(benchmark)
    datasets = _datasets(session, benchmark)
    path = None if cache is None else cache / f"coverage-{benchmark.id}.npz"
    key = _cache_key(benchmark, datasets)
    known = None if path is None else _read_cache(path, key, datasets)
    if known is not None and known[0] == benchmark.revision:
        return known[1]
    found = _count(session, datasets, None if known is None else known[1])
    if path is not None:
        _write_cache(path, key, benchmark.revision, found)
    return found


@dataclass(frozen=True)
class _DatasetInfo:
    pk: int
    name: str
    scorer_pk: int
    weight: float
    size: int


def _datasets(session: Session, benchmark: Benchmark) -> list[_DatasetInfo]:
    sizes: dict[Any, int] = dict(
        session.exec(
            select(Prompt.dataset_id, func.count())
            .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
            .where(Dataset.benchmark_id == benchmark.id)
            .group_by(col(Prompt.dataset_id))
        ).all()
    )
    query = select(Dataset).where(Dataset.benchmark_id == benchmark.id).order_by(col(Dataset.id))
    return [
        _DatasetInfo(int(d.id or 0), d.name, d.scorer_id, d.weight, int(sizes.get(d.id, 0)))
        for d in session.exec(query).all()
    ]


def _count(session: Session, datasets: Sequence[_DatasetInfo], known: Coverage | None) -> Coverage:
    keep = _empty(datasets) if known is None else _only(known, known.complete)
    methods = None if known is None else _other_methods(session, keep.method_pks)
    blocks = [list(_aggregates(session, dataset, methods)) for dataset in datasets]
    fresh = sorted({row[0] for block in blocks for row in block})
    row_of = {pk: i for i, pk in enumerate(fresh)}
    counts = np.zeros((len(fresh), len(datasets)), dtype=np.int64)
    sums = np.zeros((len(fresh), len(datasets)))
    for d, block in enumerate(blocks):
        for pk, count, total in block:
            counts[row_of[pk], d], sums[row_of[pk], d] = count, total
    pks = np.concatenate([keep.method_pks, np.array(fresh, dtype=np.int64)])
    order = np.argsort(pks)
    return _coverage(
        datasets,
        pks[order],
        np.concatenate([keep.counts, counts])[order],
        np.concatenate([keep.sums, sums])[order],
    )


def _aggregates(
    session: Session, dataset: _DatasetInfo, methods: Sequence[int] | None
) -> Iterator[tuple[int, int, float]]:
    """(method, number of scores, their sum) of a dataset, of the given methods or of all."""
    query = "SELECT method_id, COUNT(*), SUM(value) FROM score WHERE dataset_id = :d AND scorer_id = :s"
    values = {"d": dataset.pk, "s": dataset.scorer_pk}
    if methods is None:
        rows = session.connection().execute(text(query + " GROUP BY method_id"), values)
        yield from ((int(m), int(n), float(total)) for m, n, total in rows)
        return
    some = text(query + " AND method_id IN :methods GROUP BY method_id").bindparams(
        bindparam("methods", expanding=True)
    )
    for start in range(0, len(methods), CHUNK):
        rows = session.connection().execute(some, {**values, "methods": list(methods[start : start + CHUNK])})
        yield from ((int(m), int(n), float(total)) for m, n, total in rows)


def _other_methods(session: Session, complete: NDArray[np.int64]) -> list[int]:
    done = set(complete.tolist())
    return [int(pk) for pk in session.exec(select(Method.id)).all() if pk is not None and pk not in done]


def _coverage(
    datasets: Sequence[_DatasetInfo],
    method_pks: NDArray[np.int64],
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> Coverage:
    sizes = np.array([dataset.size for dataset in datasets], dtype=np.int64)
    weights = np.where(sizes > 0, [dataset.weight for dataset in datasets], 0.0) if len(sizes) else sizes
    shares = weights / weights.sum() if weights.sum() > 0 else np.zeros(len(sizes))
    return Coverage(tuple(d.name for d in datasets), sizes, shares, method_pks, counts, sums)


def _empty(datasets: Sequence[_DatasetInfo]) -> Coverage:
    shape = (0, len(datasets))
    return _coverage(datasets, np.empty(0, np.int64), np.empty(shape, np.int64), np.empty(shape))


def _only(coverage: Coverage, rows: NDArray[np.bool_]) -> Coverage:
    return Coverage(
        coverage.datasets,
        coverage.sizes,
        coverage.shares,
        coverage.method_pks[rows],
        coverage.counts[rows],
        coverage.sums[rows],
    )


# --- cache -------------------------------------------------------------------------------------------------


def _cache_key(benchmark: Benchmark, datasets: Sequence[_DatasetInfo]) -> str:
    # A new database may reuse the id; another prompt, weight or scorer makes other rows complete.
    created = benchmark.created_at.isoformat()
    described = [list(vars(dataset).values()) for dataset in datasets]
    return json.dumps([CACHE_FORMAT, benchmark.id, created, benchmark.prompts_revision, described])


def _read_cache(path: Path, key: str, datasets: Sequence[_DatasetInfo]) -> tuple[int, Coverage] | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            found = _coverage(datasets, stored["method_pks"], stored["counts"], stored["sums"])
            return int(stored["revision"]), found
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        return None  # absent, of an older format, or half a file: count again


def _write_cache(path: Path, key: str, revision: int, coverage: Coverage) -> None:
    # A reader without the right to write there (a web page on another machine) counts again each time.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            np.savez(
                file,
                key=np.array(key),
                revision=np.array(revision),
                method_pks=coverage.method_pks,
                counts=coverage.counts,
                sums=coverage.sums,
            )
        Path(file.name).replace(path)
