"""What every watcher is."""

from __future__ import annotations

from typing import Protocol

from storage.database import Database

__all__ = ["Watcher"]


class Watcher(Protocol):
    """Looks at a source and stores what is new; remembers in the database what it saw."""

    name: str

    def poll(self, database: Database) -> int:
        """Look once, if it is time to; returns how many new things were stored.

        Bad items are noted and skipped; a source that is down is noted and tried again later.
        """
        ...

    def check(self) -> str:
        """Look at the source without storing anything; says what is there.

        Raises:
            AssayError: The source cannot be read; the hint says what to do.
        """
        ...
