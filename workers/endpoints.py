"""News of endpoints: paused by a limit, circuit opened, circuit closed."""

from __future__ import annotations

import logging
import threading
import time

from assay.errors import StorageError
from storage.database import Database
from storage.events import emit

__all__ = ["Announcer"]

#: Pauses of one endpoint are announced at most once in so many seconds: a storm is one piece of news.
QUIET_S = 60.0

KINDS = {"paused": "endpoint.paused", "opened": "endpoint.down", "closed": "endpoint.up"}

log = logging.getLogger(__name__)


class Announcer:
    """Stores an event for each change of an endpoint, off the caller's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._announced: dict[str, float] = {}

    def changed(self, endpoint: str, change: str, seconds: float) -> None:
        """Take note of a change; never blocks and never raises."""
        log.warning("endpoint %s: %s for %.1f s", endpoint, change, seconds)
        now = time.monotonic()
        if change == "paused" and now - self._announced.get(endpoint, -QUIET_S) < QUIET_S:
            return
        self._announced[endpoint] = now
        threading.Thread(target=self._store, args=(endpoint, change, seconds), daemon=True).start()

    def _store(self, endpoint: str, change: str, seconds: float) -> None:
        try:
            with self._database.begin() as session:
                emit(session, KINDS[change], {"endpoint": endpoint, "seconds": round(seconds, 1)})
        except StorageError as error:
            log.warning("no event of endpoint %s: %s", endpoint, error)
