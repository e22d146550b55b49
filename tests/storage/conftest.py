"""A fresh database per test: SQLite always, PostgreSQL where servers are asked for (`-m services`)."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
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


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'assay.db'}"
        return
    name = f"assay_test_{uuid.uuid4().hex}"
    _on_server(f"CREATE DATABASE {name}")
    try:
        url = make_url(os.environ.get("ASSAY_TEST_POSTGRES_URL", POSTGRES)).set(database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        _on_server(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_db(empty_url: str) -> Iterator[Database]:
    """A database without tables."""
    database = Database(empty_url)
    yield database
    database.close()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables, to copy: migrating anew costs each test 0.2 s."""
    path = tmp_path_factory.mktemp("migrated") / "assay.db"
    database = Database(f"sqlite:///{path}")
    database.upgrade()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path


@pytest.fixture
def db(empty_db: Database, migrated: Path) -> Database:
    """A database with all tables and nothing in them."""
    if empty_db.is_sqlite:
        shutil.copy(migrated, str(empty_db.url.database))
    else:
        empty_db.upgrade()
    return empty_db
