"""A world per test: SQLite file, agent, inline workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import World


@pytest.fixture(scope="session")
def made_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world's folder, to copy: migrating and importing anew would cost each test a third of a second."""
    world = World.open(tmp_path_factory.mktemp("world")).with_history()
    with world.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    world.database.close()
    return world.folder


@pytest.fixture
def world(tmp_path: Path, made_world: Path) -> Iterator[World]:
    shutil.copytree(made_world, tmp_path, dirs_exist_ok=True)
    opened = World.open(tmp_path)
    yield opened
    opened.database.close()
