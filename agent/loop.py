"""The agent's loop: watch, handle events, advance studies, sweep; then sleep until somebody wakes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import redis
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from agent import rules
from agent.advance import advance
from agent.context import AgentContext
from agent.notify import Deliverer, message_of, wants
from agent.ranking import note, ranking_after
from agent.sweeper import Sweeper
from agent.watchers import Watcher
from assay.errors import AssayError, StorageError
from assay.logs import log_context
from storage import events, outbox, studies
from storage.tables import Event
from workers import broker

__all__ = ["Agent"]

#: Longest sleep: a lost wake-up delays the news by this much at most.
LONGEST_SLEEP_S = 1.0
STOP_PATIENCE_S = 2.0  # for a message that is just being sent; cut off, it is sent again later

log = logging.getLogger(__name__)


class _Taken(Exception):  # noqa: N818
    """Another agent handled the event first."""


class Agent:
    """One agent process. Any number may run on one database.

    Args:
        context: Database, settings and the way to the workers.
        watchers: What to look for new models and prompts in.
    """

    def __init__(self, context: AgentContext, watchers: Sequence[Watcher] = ()) -> None:
        self._context = context
        self._watchers = watchers
        self._sweeper = Sweeper(context)
        self._channel = broker.client(context.settings.broker, socket_timeout=LONGEST_SLEEP_S + 5)
        self._moved: set[int] = set()
        self._next_watch = 0.0
        self._next_sweep = 0.0

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; a database or broker that is away is waited for."""
        deliverer = Deliverer(self._context.database, self._context.settings)
        mail = threading.Thread(target=deliverer.run, args=(stop,), name="outbox", daemon=True)
        mail.start()
        while not stop.is_set():
            try:
                if not self.tick():
                    self._sleep(stop)
            except StorageError as error:
                log.error("%s; trying again", error)
                stop.wait(1.0)
        mail.join(timeout=STOP_PATIENCE_S)

    def tick(self) -> bool:
        """One round; True where something happened, so that the next round should follow at once."""
        self._watch()
        before = self._moved
        due = self._handle_events() | self._sweep() | before
        self._moved = set()
        for study_id in sorted(due):
            if advance(self._context, study_id):
                self._moved.add(study_id)  # look at it again: the step may have to be chosen anew
        return bool(self._moved - before)  # what moves without end must not keep the processor busy

    def _sleep(self, stop: threading.Event) -> None:
        now = time.monotonic()
        timeout = min(LONGEST_SLEEP_S, self._next_sweep - now)
        if self._watchers:
            timeout = min(timeout, self._next_watch - now)
        try:
            broker.wait_for_wake_up(self._channel, max(timeout, 0.01))
        except (redis.RedisError, OSError):
            stop.wait(0.5)  # without a broker, look into the database twice a second

    def _watch(self) -> None:
        if not self._watchers or time.monotonic() < self._next_watch:
            return
        self._next_watch = time.monotonic() + self._context.settings.watch_interval_s
        for watcher in self._watchers:
            try:
                watcher.poll(self._context.database)
            except AssayError as error:
                log.error("watcher %s: %s", watcher.name, error)

    def _sweep(self) -> set[int]:
        """Sweep if it is time; then every unfinished study is looked at, whatever news was lost."""
        if time.monotonic() < self._next_sweep:
            return set()
        self._next_sweep = time.monotonic() + self._context.settings.sweep_s
        self._sweeper.sweep()
        with self._context.database.read() as session:
            return set(studies.unfinished(session))

    def _handle_events(self) -> set[int]:
        with self._context.database.read() as session:
            waiting = events.unhandled(session)
        due: set[int] = set()
        for event in waiting:
            with log_context(event_id=event.id):
                due |= self._handle(event)
        return due

    def _handle(self, event: Event) -> set[int]:
        assert event.id is not None
        try:
            ranking = ranking_after(self._context.database, self._context.settings, event)
            with self._context.database.begin() as session:
                due = rules.handle(session, self._context.settings, event)
                if ranking is not None:
                    note(session, ranking)
                self._tell(session, event)
                if not events.mark_handled(session, event.id):
                    raise _Taken
                return due
        except (_Taken, IntegrityError):  # another agent was faster; if not, the event comes up again
            log.info("event %s (%s): another agent was faster", event.id, event.kind)
            return set()
        except StorageError:
            raise
        except AssayError as error:
            log.error("event %s (%s): %s", event.id, event.kind, error)
            self._set_aside(event.id, str(error))
        except Exception as error:  # an event that stops the agent would stop it again after each restart
            log.exception("event %s (%s) failed unexpectedly", event.id, event.kind)
            self._set_aside(event.id, f"unexpected {type(error).__name__}: {error}")
        return set()

    def _tell(self, session: Session, event: Event) -> None:
        """Put a message into the outbox for each target that asks for such events."""
        targets = [spec for spec in self._context.settings.notify if wants(spec, event)]
        if targets:
            message = message_of(session, event).as_dict()
            for spec in targets:
                outbox.enqueue(session, event.id, spec.name, message)

    def _set_aside(self, event_id: int, reason: str) -> None:
        with self._context.database.begin() as session:
            events.mark_failed(session, event_id, reason)
