"""Sending what the outbox holds, again and again until it arrives or is given up."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agent.notify._base import DeliveryError, Message
from agent.notify._registry import make_notifier
from assay.errors import AssayError, StorageError
from assay.settings import Settings
from storage import outbox
from storage.database import Database
from storage.tables import Notification

__all__ = ["Deliverer"]

log = logging.getLogger(__name__)

LOOK_S = 1.0  # seconds between looks into the outbox
LEASE = timedelta(seconds=60)  # longer than any try lasts
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=5), timedelta(hours=1)


class Deliverer:
    """Takes notifications from the outbox and sends them; any number may run on one database.

    Args:
        database: Holds the outbox.
        settings: Names the targets.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._targets = {spec.name: spec for spec in settings.notify}
        self._most = settings.notify_attempts
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{id(self)}"

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set; a database that is away is waited for."""
        while not stop.is_set():
            try:
                while self.deliver() and not stop.is_set():
                    pass
            except StorageError as error:
                log.error("%s; trying again", error)
            except Exception:  # a message that stops this thread would silence all the others
                log.exception("the outbox failed unexpectedly")
            stop.wait(LOOK_S)

    def deliver(self) -> bool:
        """Send the oldest notification that is due; False where there is none."""
        if not self._targets:
            return False
        with self._database.read() as session:
            if not outbox.any_due(session):
                return False
        with self._database.begin() as session:
            taken = outbox.claim(session, self._owner, LEASE)
        if taken is None:
            return False
        self._store(taken, self._try(taken))
        return True

    def _try(self, taken: Notification) -> DeliveryError | None:
        spec = self._targets.get(taken.target)
        if spec is None:
            return DeliveryError(f"there is no target '{taken.target}' any more", again=False)
        try:
            make_notifier(spec).send(_message(taken.message))
        except DeliveryError as error:
            return error
        except AssayError as error:  # a secret that is not set: somebody may set it
            return DeliveryError(str(error))
        except Exception as error:
            log.exception("notifier '%s' failed unexpectedly", spec.kind)
            return DeliveryError(f"unexpected {type(error).__name__}")
        return None

    def _store(self, taken: Notification, failure: DeliveryError | None) -> None:
        assert taken.id is not None
        with self._database.begin() as session:
            if failure is None:
                outbox.sent(session, taken.id, self._owner)
            elif failure.again and taken.attempts < self._most:
                wait = min(FIRST_WAIT * 2 ** (taken.attempts - 1), LONGEST_WAIT)
                outbox.again(session, taken.id, self._owner, str(failure), wait)
            else:
                outbox.failed(session, taken.id, self._owner, str(failure))
        if failure is not None:
            log.warning("notification %s to %s: %s", taken.id, taken.target, failure)


def _message(stored: Mapping[str, Any]) -> Message:
    return Message(**stored)
