"""Opening a database, and the two kinds of session: one that reads, one that writes.

All writes go through `Database.begin`, which commits, rolls back and turns driver errors into StorageError.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, event, inspect, text
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlmodel import Session, create_engine

from assay.errors import BadInputError, StorageError
from storage import migrations

__all__ = ["Database"]

BUSY_TIMEOUT_S = 30.0
UPGRADE_LOCK = 0x41535341  # any number that nobody else uses on the server


class Database:
    """One database, SQLite (WAL) or PostgreSQL, behind one URL.

    Threads and processes may share a URL freely; each takes its own connections.

    Args:
        url: SQLAlchemy URL, `sqlite:///path` or `postgresql+psycopg://...` (`postgresql://` is taken too).
        busy_timeout_s: How long a SQLite write waits for another writer, and PostgreSQL for the server.

    Raises:
        StorageError: The URL is not one that Assay can use.
    """

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.url = _checked_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = self._engine(busy_timeout_s)
        # PostgreSQL's default isolation gives each statement a snapshot of its own; SQLite has one anyway.
        snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        self._reading = self.engine.execution_options(**snapshot)
        self._writing = self.engine.execution_options(assay_begin="IMMEDIATE")

    def _engine(self, timeout_s: float) -> Engine:
        if not self.is_sqlite:
            timeout = {"connect_timeout": max(1, round(timeout_s))}
            return create_engine(
                self.url, pool_pre_ping=True, pool_size=5, max_overflow=20, connect_args=timeout
            )
        engine = create_engine(self.url, connect_args={"timeout": timeout_s, "check_same_thread": False})
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A writing session: commits at the end, rolls back on any error.

        On SQLite the write lock is taken at the start (BEGIN IMMEDIATE), so that a transaction that reads and
        then writes can never fail halfway for another writer's sake.

        Raises:
            StorageError: The database is locked, read-only or cannot be reached.
        """
        with (
            self._translated(),
            Session(self._writing, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A reading session over one consistent snapshot.

        Raises:
            StorageError: The database cannot be reached.
        """
        with self._translated(), Session(self._reading, expire_on_commit=False) as session:
            yield session

    def create_or_check(self) -> None:
        """Create the tables of an empty SQLite file; otherwise check the schema's version.

        Raises:
            StorageError: The schema is older or newer than this program.
        """
        with self._translated():
            if self.is_sqlite and not inspect(self.engine).get_table_names():
                self.upgrade()
            else:
                self.check()

    def check(self) -> None:
        """Raise StorageError unless the schema is this program's."""
        with self._translated(), self.engine.connect() as connection:
            migrations.check(connection)

    def upgrade(self) -> None:
        """Bring the schema to this program's version (creating it in an empty database), or change nothing.

        Several programs may do so at once: they take turns, and all but the first find nothing to do.

        Raises:
            StorageError: The database cannot be written, or is of a newer version.
        """
        self._make_folder()
        with self._translated(), self._writing.begin() as connection:
            if not self.is_sqlite:  # there the write lock was taken by BEGIN IMMEDIATE
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
            migrations.upgrade(connection)

    def _make_folder(self) -> None:
        path = self.url.database
        if not self.is_sqlite or not path or path.startswith("file:"):
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the folder of database {path} cannot be made: {error.strerror}", "choose another data_dir"
            ) from None

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error, psycopg.Error) as error:  # bulk statements go to the driver itself
            if NUL in str(error):
                raise BadInputError("a name holds a NUL character", "take it out") from None
            translated = self._storage_error(error)
            if translated is None:
                raise
            raise translated from error

    def _storage_error(self, error: Exception) -> StorageError | None:
        """What a driver's error means for the user; None where it is none of the database's condition."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        lines = str(cause).strip().splitlines()
        said = lines[0] if lines else type(cause).__name__
        where = f"database {self.url.render_as_string(hide_password=True)}"
        for pattern, what, hint in CONDITIONS:
            if re.search(pattern, said, re.IGNORECASE):
                return StorageError(f"{where} {what.format(said=said)}", hint)
        if isinstance(cause, (sqlite3.OperationalError, psycopg.OperationalError)):
            return StorageError(
                f"{where} cannot be used: {said}", "check ASSAY_DATABASE_URL with: assay doctor"
            )
        return None


#: What PostgreSQL's driver says of texts that it cannot keep; SQLite keeps them.
NUL = "NUL (0x00)"
#: What drivers say (first match counts), what it means, and what to do about it.
CONDITIONS = (
    (r"is locked|lock timeout", "is locked by another program", "close it and try again"),
    (r"readonly|read-only", "is read-only", "give this user the right to write to the file and its folder"),
    (r"unable to open", "cannot be opened", "check that its folder exists and is writable"),
    (r"not a database|malformed", "is no SQLite database: {said}", "move the file away, or choose another"),
    (r"disk is full|no space", "has no space left: {said}", "free some space and try again"),
    (r"no such (table|column)", "lacks tables: {said}", "run: assay db upgrade"),
    (r"(relation|column) .* does not exist", "lacks tables: {said}", "run: assay db upgrade"),
    (
        r'database ".*" does not exist',
        "does not exist",
        "create it with: createdb NAME; then: assay db upgrade",
    ),
    (r"permission denied", "may not be used: {said}", "grant this user the right"),
    (r"deadlock|serialize", "was busy: {said}", "try again"),
    (
        r"refused|could not connect|connection failed|timeout expired|server closed",
        "cannot be reached: {said}",
        "start PostgreSQL, or correct ASSAY_DATABASE_URL",
    ),
)


def _checked_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StorageError(
            "the database URL cannot be read", "use sqlite:///path/assay.db or postgresql://user@host/name"
        ) from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StorageError(
            f"database kind '{parsed.get_backend_name()}' is not supported", "use SQLite or PostgreSQL"
        )
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own transaction control starts transactions late and cannot take the write lock first.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    mode = connection.get_execution_options().get("assay_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
