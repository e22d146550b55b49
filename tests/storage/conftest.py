"""A fresh database per test: SQLite always, PostgreSQL where servers are asked for (`-m services`)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from storage.database import Database

POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"
BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.services)]


def _on_server(statement: str) -> None:
    server = Database(os.environ.get("ASSAY_TEST_POSTGRES_URL", POSTGRES))
    with server.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
    server.close()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables, to copy: migrating anew would cost each test 0.2 s."""
    path = tmp_path_factory.mktemp("migrated") / "assay.db"
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path


@contextmanager
def _postgres(template: str = "template0") -> Iterator[str]:
    name = f"assay_test_{uuid.uuid4().hex}"
    _on_server(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        url = make_url(os.environ.get("ASSAY_TEST_POSTGRES_URL", POSTGRES)).set(database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        _on_server(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def migrated_postgres() -> Iterator[str]:
    """The name of a PostgreSQL database with all tables, to copy."""
    with _postgres() as url:
        database = Database(url)
        database.upgrade()
        database.close()
        yield str(make_url(url).database)


@pytest.fixture(params=BOTH)
def empty_db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without tables."""
    with ExitStack() as stack:
        sqlite = request.param == "sqlite"
        url = f"sqlite:///{tmp_path / 'assay.db'}" if sqlite else stack.enter_context(_postgres())
        database = Database(url)
        stack.callback(database.close)
        yield database


@pytest.fixture(params=BOTH)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with all tables and nothing in them."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "assay.db")
            url = f"sqlite:///{tmp_path / 'assay.db'}"
        else:
            url = stack.enter_context(_postgres(request.getfixturevalue("migrated_postgres")))
        database = Database(url)
        stack.callback(database.close)
        yield database
