"""Scores: stored in bulk through the driver, never twice, never changed silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg.errors import UniqueViolation
from sqlalchemy import Connection, text, update
from sqlmodel import Session, col

from assay.errors import BadInputError
from storage.tables import Benchmark, Origin

__all__ = ["ScoreBlock", "ScoreRow", "add_block", "add_scores", "bump_revision"]

COLUMNS = ("dataset_id", "scorer_id", "method_id", "prompt_id", "value", "origin", "job_id")
NAMES = ", ".join(COLUMNS)


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One score to store."""

    dataset_id: int
    scorer_id: int
    method_id: int
    prompt_id: int
    value: float
    origin: str = Origin.ACQUIRED
    job_id: int | None = None

    def astuple(self) -> tuple[Any, ...]:
        """The values in the order of the table's columns."""
        return (
            self.dataset_id,
            self.scorer_id,
            self.method_id,
            self.prompt_id,
            self.value,
            str(self.origin),
            self.job_id,
        )


@dataclass(frozen=True)
class ScoreBlock:
    """Many imported scores, as arrays: no object per score is ever made.

    Attributes:
        dataset_ids: (n,) keys of the datasets.
        scorer_ids: (n,) keys of the scorers.
        method_ids: (n,) keys of the methods.
        prompt_ids: (n,) keys of the prompts.
        values: (n,) finite scores in [0, 1].
    """

    dataset_ids: NDArray[np.int64]
    scorer_ids: NDArray[np.int64]
    method_ids: NDArray[np.int64]
    prompt_ids: NDArray[np.int64]
    values: NDArray[np.float64]

    def in_key_order(self) -> ScoreBlock:
        """The same scores in the order of the table's key, in which both databases take them fastest."""
        order = np.lexsort((self.prompt_ids, self.method_ids, self.scorer_ids, self.dataset_ids))
        return ScoreBlock(
            self.dataset_ids[order],
            self.scorer_ids[order],
            self.method_ids[order],
            self.prompt_ids[order],
            self.values[order],
        )

    def __len__(self) -> int:
        return len(self.values)


def add_scores(session: Session, rows: Sequence[tuple[Any, ...]]) -> int:
    """Store a batch of scores given as tuples in the order of `COLUMNS`; those that are there already stay.

    Args:
        session: A writing session; the caller bumps the benchmark's revision.
        rows: (dataset_id, scorer_id, method_id, prompt_id, value, origin, job_id); values finite, in [0, 1].

    Returns:
        How many were new.

    Raises:
        BadInputError: A value is outside [0, 1], or an imported score is there already with another value;
            nothing was stored.
    """
    _check_values(np.array([row[4] for row in rows], dtype=np.float64))
    if not rows:
        return 0
    connection = session.connection()
    insert = _insert_sqlite if connection.dialect.name == "sqlite" else _insert_postgresql
    new = insert(connection, rows)
    imported = [row for row in rows if row[5] == Origin.IMPORTED]
    if new < len(rows) and imported:
        _refuse_changed_values(connection, _as_block(imported))
    return new


def add_block(session: Session, block: ScoreBlock) -> int:
    """Store imported scores given as arrays; those that are there already with the same value stay.

    Args:
        session: A writing session; the caller bumps the benchmark's revision.
        block: The scores, each cell at most once.

    Returns:
        How many were new.

    Raises:
        BadInputError: A value is outside [0, 1], or a score is there already with another value; the caller's
            transaction must be rolled back.
    """
    _check_values(block.values)
    connection = session.connection()
    block = block.in_key_order()
    if connection.dialect.name == "sqlite":
        return _add_block_sqlite(connection, block)
    return _add_block_postgresql(connection, block)


def bump_revision(session: Session, benchmark_id: int) -> None:
    """Say that the benchmark's scores changed, so that cached matrices know they are stale."""
    session.connection().execute(
        update(Benchmark).where(col(Benchmark.id) == benchmark_id).values(revision=Benchmark.revision + 1)
    )


def _check_values(values: NDArray[np.float64]) -> None:
    wrong = ~((values >= 0.0) & (values <= 1.0))  # also true of NaN
    if wrong.any():
        raise BadInputError(
            f"score {values[np.argmax(wrong)]:g} is outside [0, 1]", "rescale the scores to [0, 1]"
        )


def _as_block(rows: Sequence[tuple[Any, ...]]) -> ScoreBlock:
    keys = np.array([row[:4] for row in rows], dtype=np.int64)
    values = np.array([row[4] for row in rows], dtype=np.float64)
    return ScoreBlock(keys[:, 0], keys[:, 1], keys[:, 2], keys[:, 3], values)


# --- SQLite ------------------------------------------------------------------------------------------------

INSERT = f"INSERT INTO score ({NAMES}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
INSERT_BLOCK = f"INSERT INTO score ({NAMES}) VALUES (?, ?, ?, ?, ?, 'imported', NULL) ON CONFLICT DO NOTHING"  # noqa: S608


def _insert_sqlite(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
    return _changes(connection, INSERT, rows)


def _add_block_sqlite(connection: Connection, block: ScoreBlock) -> int:
    new = _changes(connection, INSERT_BLOCK, _tuples(block))
    if new < len(block):
        _refuse_changed_values(connection, block)
    return new


def _changes(connection: Connection, statement: str, rows: Any) -> int:
    driver: Any = connection.connection.driver_connection
    before = driver.total_changes
    driver.executemany(statement, rows)
    return int(driver.total_changes - before)


def _tuples(block: ScoreBlock) -> zip[tuple[Any, ...]]:
    return zip(
        block.dataset_ids.tolist(),
        block.scorer_ids.tolist(),
        block.method_ids.tolist(),
        block.prompt_ids.tolist(),
        block.values.tolist(),
        strict=True,
    )


# --- PostgreSQL --------------------------------------------------------------------------------------------

# In key order, so that two writers of the same cells lock them in the same order.
INSERT_ARRAYS = (
    f"INSERT INTO score ({NAMES}) SELECT * FROM unnest("  # noqa: S608
    "%s::int[], %s::int[], %s::int[], %s::int[], %s::float8[], %s::text[], %s::int[])"
    " ORDER BY 1, 2, 3, 4 ON CONFLICT DO NOTHING"
)
KEY_AND_VALUE = "dataset_id, scorer_id, method_id, prompt_id, value"
SAME_CELL = (
    "s.dataset_id = i.dataset_id AND s.scorer_id = i.scorer_id"
    " AND s.method_id = i.method_id AND s.prompt_id = i.prompt_id"
)
# One row of PostgreSQL's binary COPY format: the number of fields, then length and content of each.
KEYS = ("dataset", "scorer", "method", "prompt")
COPY_ROW: list[tuple[str, str]] = [
    ("fields", ">i2"),
    *[(f"{key}{part}", ">i4") for key in KEYS for part in ("_n", "")],
    ("value_n", ">i4"),
    ("value", ">f8"),
]
COPY_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
COPY_TAIL = b"\xff\xff"


def _insert_postgresql(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(INSERT_ARRAYS, [list(column) for column in zip(*rows, strict=True)])
        return int(cursor.rowcount)


def _add_block_postgresql(connection: Connection, block: ScoreBlock) -> int:
    """Copy into the table itself where nothing is there yet (twice as fast), else into a staging table."""
    if not _any_known(connection, block):
        try:
            with connection.begin_nested():
                _copy(connection, "score", block, origin=True)
            return len(block)
        except UniqueViolation:  # a worker scored one of the cells in this moment
            pass
    _stage(connection, block)
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO score ({KEY_AND_VALUE}, origin) SELECT {KEY_AND_VALUE}, 'imported' FROM incoming i"  # noqa: S608
            f" WHERE NOT EXISTS (SELECT 1 FROM score s WHERE {SAME_CELL}) ON CONFLICT DO NOTHING"
        )
        new = int(cursor.rowcount)
    if new < len(block):
        _refuse_changed_values(connection, block, staged=True)
    return new


def _any_known(connection: Connection, block: ScoreBlock) -> bool:
    """Whether a method of the block has a score in any of its datasets already."""
    pairs = np.unique(np.stack([block.dataset_ids, block.scorer_ids], axis=1), axis=0)
    query = text(
        "SELECT EXISTS (SELECT 1 FROM score WHERE dataset_id = :dataset AND scorer_id = :scorer"
        " AND method_id = ANY(:methods))"
    )
    methods = np.unique(block.method_ids).tolist()
    for dataset, scorer in pairs.tolist():
        values = {"dataset": dataset, "scorer": scorer, "methods": methods}
        if connection.execute(query, values).scalar():
            return True
    return False


def _stage(connection: Connection, block: ScoreBlock) -> None:
    """Put a block into the temporary table `incoming`."""
    driver: Any = connection.connection.driver_connection
    columns = "dataset_id int, scorer_id int, method_id int, prompt_id int, value float8"
    driver.execute(f"CREATE TEMP TABLE IF NOT EXISTS incoming ({columns})")
    driver.execute("DELETE FROM incoming" if connection.dialect.name == "sqlite" else "TRUNCATE incoming")
    if connection.dialect.name == "sqlite":
        driver.executemany("INSERT INTO incoming VALUES (?, ?, ?, ?, ?)", _tuples(block))
        return
    _copy(connection, "incoming", block, origin=False)


def _copy(connection: Connection, table: str, block: ScoreBlock, *, origin: bool) -> None:
    columns = KEY_AND_VALUE + (", origin" if origin else "")
    driver: Any = connection.connection.driver_connection
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(COPY_HEAD + _copy_rows(block, origin=origin).tobytes() + COPY_TAIL)


def _copy_rows(block: ScoreBlock, *, origin: bool) -> NDArray[Any]:
    word = str(Origin.IMPORTED).encode()
    row = COPY_ROW + ([("origin_n", ">i4"), ("origin", f"S{len(word)}")] if origin else [])
    rows = np.empty(len(block), dtype=row)
    rows["fields"] = 6 if origin else 5
    for name in KEYS:
        rows[f"{name}_n"] = 4
        rows[name] = getattr(block, f"{name}_ids")
    rows["value_n"] = 8
    rows["value"] = block.values
    if origin:
        rows["origin_n"], rows["origin"] = len(word), word
    return rows


# --- both --------------------------------------------------------------------------------------------------


def _refuse_changed_values(connection: Connection, block: ScoreBlock, *, staged: bool = False) -> None:
    if not staged:
        _stage(connection, block)
    clash = connection.execute(
        text(
            f"SELECT m.name, p.key, s.value, i.value FROM incoming i JOIN score s ON {SAME_CELL}"  # noqa: S608
            " JOIN method m ON m.id = s.method_id JOIN prompt p ON p.id = s.prompt_id"
            " WHERE abs(s.value - i.value) > 1e-6 ORDER BY i.method_id, i.prompt_id LIMIT 1"
        )
    ).first()
    if clash is not None:
        method, prompt, old, new = clash
        raise BadInputError(
            f"method '{method}' already has score {old:g} on prompt '{prompt}', the new one says {new:g}",
            "scores are never changed; import under another method or benchmark name",
        )
