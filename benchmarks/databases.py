"""Empty databases to measure on: a SQLite file, or one made on a PostgreSQL server and dropped afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

__all__ = ["KINDS", "fresh_database"]

KINDS = ("sqlite", "postgresql")
POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"


@contextmanager
def fresh_database(kind: str) -> Iterator[str | None]:
    """URL of an empty database; "" stands for the SQLite file of the data folder.

    The server is the one at ASSAY_TEST_POSTGRES_URL (default: user postgres on this machine). Where none
    answers, that is said, and None is given.
    """
    if kind == "sqlite":
        yield ""
        return
    server = os.environ.get("ASSAY_TEST_POSTGRES_URL", POSTGRES)
    name = f"assay_measured_{os.getpid()}"
    try:
        with psycopg.connect(server, autocommit=True, connect_timeout=5) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    except psycopg.OperationalError as error:
        print(f"PostgreSQL is left out, {server.rpartition('@')[2]} does not answer: {error}")
        yield None
        return
    try:
        yield f"{server.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
