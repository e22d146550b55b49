"""Scores: stored in bulk through the driver, never twice, never changed silently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text, update
from sqlmodel import Session, col

from assay.errors import BadInputError
from storage.tables import Benchmark, Origin

__all__ = ["ScoreRow", "add_scores", "bump_revision"]

COLUMNS = ("dataset_id", "scorer_id", "method_id", "prompt_id", "value", "origin", "job_id")


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


def add_scores(session: Session, rows: Sequence[tuple[Any, ...]]) -> int:
    """Store scores given as tuples in the order of `COLUMNS`; those that are there already stay.

    Args:
        session: A writing session; the caller bumps the benchmark's revision.
        rows: (dataset_id, scorer_id, method_id, prompt_id, value, origin, job_id); values finite, in [0, 1].

    Returns:
        How many were new.

    Raises:
        BadInputError: A score is there already with another value; nothing was stored.
    """
    for row in rows:
        if not (0.0 <= row[4] <= 1.0) or math.isnan(row[4]):
            raise BadInputError(f"score {row[4]} is outside [0, 1]", "rescale the scores to [0, 1]")
    connection = session.connection()
    insert = _insert_sqlite if connection.dialect.name == "sqlite" else _insert_postgresql
    return insert(connection, rows)


def bump_revision(session: Session, benchmark_id: int) -> None:
    """Say that the benchmark's scores changed, so that cached matrices know they are stale."""
    session.connection().execute(
        update(Benchmark).where(col(Benchmark.id) == benchmark_id).values(revision=Benchmark.revision + 1)
    )


INSERT = f"INSERT INTO score ({', '.join(COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608


def _insert_sqlite(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
    driver: Any = connection.connection.driver_connection
    before = driver.total_changes
    driver.executemany(INSERT, rows)
    new = int(driver.total_changes - before)
    if new < len(rows):
        driver.execute("CREATE TEMP TABLE IF NOT EXISTS incoming AS SELECT * FROM score WHERE 0")
        driver.execute("DELETE FROM incoming")
        driver.executemany("INSERT INTO incoming VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        _refuse_changed_values(connection)
    return new


def _insert_postgresql(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
    driver: Any = connection.connection.driver_connection
    columns = ", ".join(COLUMNS)
    with driver.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE IF NOT EXISTS incoming (LIKE score) ON COMMIT DELETE ROWS; TRUNCATE incoming"
        )
        with cursor.copy(f"COPY incoming ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "int4", "int4", "int4", "float8", "varchar", "int4"])
            for row in rows:
                copy.write_row(row)
        # In key order, so that two writers of the same cells lock them in the same order.
        cursor.execute(
            f"INSERT INTO score ({columns}) SELECT {columns} FROM incoming"  # noqa: S608
            " ORDER BY dataset_id, scorer_id, method_id, prompt_id ON CONFLICT DO NOTHING"
        )
        new = int(cursor.rowcount)
    if new < len(rows):
        _refuse_changed_values(connection)
    return new


def _refuse_changed_values(connection: Connection) -> None:
    clash = connection.execute(
        text(
            "SELECT m.name, p.key, s.value, i.value FROM incoming i JOIN score s"
            " ON s.dataset_id = i.dataset_id AND s.scorer_id = i.scorer_id"
            " AND s.method_id = i.method_id AND s.prompt_id = i.prompt_id"
            " JOIN method m ON m.id = s.method_id JOIN prompt p ON p.id = s.prompt_id"
            " WHERE abs(s.value - i.value) > 1e-6 AND i.origin = 'imported' LIMIT 1"
        )
    ).first()
    if clash is not None:
        method, prompt, old, new = clash
        raise BadInputError(
            f"method '{method}' already has score {old:g} on prompt '{prompt}', the new one says {new:g}",
            "scores are never changed; import under another method or benchmark name",
        )
