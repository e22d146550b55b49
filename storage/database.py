"""Opening a database, and the two kinds of session: one that reads, one that writes.

All writes go through `Database.begin`, which commits, rolls back and turns driver errors into StorageError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, inspect
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlmodel import Session, create_engine

from assay.errors import StorageError
from storage import migrations

__all__ = ["Database"]

BUSY_TIMEOUT_S = 30


class Database:
    """One database, SQLite (WAL) or PostgreSQL, behind one URL.

    Threads and processes may share a URL freely; each takes its own connections.

    Args:
        url: SQLAlchemy URL, `sqlite:///path` or `postgresql+psycopg://...` (`postgresql://` is taken too).

    Raises:
        StorageError: The URL is not one that Assay can use.
    """

    def __init__(self, url: str) -> None:
        self.url = _checked_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = self._engine()

    def _engine(self) -> Engine:
        if not self.is_sqlite:
            return create_engine(self.url, pool_pre_ping=True, pool_size=5, max_overflow=20)
        engine = create_engine(self.url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False})
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
        bind = self.engine.execution_options(assay_begin="IMMEDIATE")
        with self._translated(), Session(bind, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A reading session over one consistent snapshot.

        Raises:
            StorageError: The database cannot be reached.
        """
        with self._translated(), Session(self.engine, expire_on_commit=False) as session:
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
        """Bring the schema to this program's version (creating it in an empty database)."""
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self._translated(), self.engine.begin() as connection:
            migrations.upgrade(connection)

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._storage_error(error) or error from error

    def _storage_error(self, error: DBAPIError) -> StorageError | None:
        where = self.url.render_as_string(hide_password=True)
        text = (
            str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
        )
        lowered = text.lower()
        if "locked" in lowered:
            return StorageError(f"database {where} is locked by another program", "close it and try again")
        if "readonly" in lowered or "read-only" in lowered:
            return StorageError(f"database {where} is read-only", "give this user the right to write to it")
        if "unable to open database file" in lowered:
            return StorageError(
                f"database {where} cannot be opened", "check that its folder exists and is writable"
            )
        if "no such table" in lowered or "does not exist" in lowered:
            return StorageError(f"database {where} lacks tables: {text}", "run: assay db upgrade")
        if isinstance(error, OperationalError):
            return StorageError(
                f"database {where} cannot be used: {text}", "check ASSAY_DATABASE_URL: assay doctor"
            )
        return None


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
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_S * 1000}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    mode = connection.get_execution_options().get("assay_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
