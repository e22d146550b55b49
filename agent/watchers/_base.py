"""What every watcher is."""

from __future__ import annotations

from typing import Protocol

from storage.database import Database

__all__ = ["Watcher"]


class Watcher(Protocol):
    """Looks at a source and stores what is new; remembers in the database what it saw."""

    name: str

    def poll(self, database: Database) -> int:
        """Look once; returns how many new things were stored. Bad items are noted and skipped."""
        ...
