"""Opening what a command or process works with: settings, database, agent context."""

from __future__ import annotations

from agent.context import AgentContext
from assay.settings import Settings
from storage.database import Database

__all__ = ["open_context", "open_database"]


def open_database(settings: Settings) -> Database:
    """The configured database, with its schema checked; an embedded one is made where there is none.

    Raises:
        StorageError: It cannot be used, or has another schema version.
    """
    if not settings.database_url:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.database)
    database.create_or_check()
    return database


def open_context(settings: Settings, database: Database | None = None) -> AgentContext:
    """What an agent process holds; jobs are sent through the configured broker."""
    from workers import app  # reads the settings and makes the Celery app, which most commands do not need

    return AgentContext(
        database=database or open_database(settings),
        settings=settings,
        send_jobs=app.send_jobs,
        send_training=app.send_training,
    )
