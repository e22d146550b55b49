"""Schema versions (Alembic), run and checked from inside the program."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from assay.errors import StorageError

__all__ = ["check", "config", "upgrade"]


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, bound to an open connection."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent))
    settings.attributes["connection"] = connection
    return settings


def check(connection: Connection) -> None:
    """Raise StorageError unless the database is at this program's schema version."""
    script = ScriptDirectory.from_config(config())
    head = script.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    if current == head:
        return
    if current is None:
        raise StorageError("the database has no Assay tables yet", "run: assay db upgrade")
    _refuse_newer(script, current)
    raise StorageError(
        f"the database has schema version {current}, this program needs {head}",
        "back it up, stop all agents and workers, then run: assay db upgrade",
    )


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run all migrations up to `revision` inside the connection's transaction.

    Raises:
        StorageError: The database is of a newer version.
    """
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None:
        _refuse_newer(ScriptDirectory.from_config(config()), current)
    command.upgrade(config(connection), revision)


def _refuse_newer(script: ScriptDirectory, current: str) -> None:
    if current in {revision.revision for revision in script.walk_revisions()}:
        return
    raise StorageError(
        f"the database has schema version {current}, which is newer than this program's"
        f" {script.get_current_head()}",
        "upgrade Assay on this machine",
    )
