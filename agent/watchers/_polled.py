"""Watching a source on the network: asked at intervals, waited for while it is down.

The agent's loop never waits for the network: a source is read in a thread of its own, and what it said is
stored at a later look. What was seen, the source's state and its ETag are remembered in the database, so a
restart repeats nothing. A source that fails is asked less and less often, up to once an hour.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, select

from assay.errors import AssayError, StorageError
from assay.specs import WatcherSpec
from storage.database import Database
from storage.events import emit
from storage.tables import WatchedItem, utc_now

__all__ = [
    "ETAG",
    "SOURCE",
    "Answer",
    "Fetched",
    "Item",
    "PolledWatcher",
    "SourceError",
    "fingerprint_of",
    "get",
    "remember_item",
]

log = logging.getLogger(__name__)

SOURCE, ETAG = ":source", ":etag"  # keys of what is remembered about the source itself
TIMEOUT_S = 10.0
LONGEST_WAIT_S = 3600.0
PATIENCE_S = 0.02  # how long a look waits for an answer that is on its way
LARGEST = 64_000_000  # bytes of an answer


class SourceError(AssayError):
    """A source cannot be read now."""


@dataclass(frozen=True)
class Item:
    """Something that a source holds.

    Attributes:
        key: Its identity within the source.
        fingerprint: Changes where it should be looked at again.
        take: Stores it in a writing session; raises AssayError where it cannot.
    """

    key: str
    fingerprint: str
    take: Callable[[Session], None]


@dataclass(frozen=True)
class Fetched:
    """What a source said: its items, and the ETag to ask with next time ("" = none)."""

    items: Sequence[Item]
    etag: str = ""


#: Asks a source; None where it says that nothing has changed since the ETag.
Fetch = Callable[[httpx.Client, str], Fetched | None]


class PolledWatcher:
    """Watches one source.

    Args:
        spec: The configuration; its name is the one under which it remembers.
        fetch: Reads the source.
    """

    def __init__(self, spec: WatcherSpec, fetch: Fetch) -> None:
        self.name = spec.label
        self.spec = spec
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"watch-{self.name}")
        self._asking: Future[Fetched | None] | None = None
        self._next = 0.0  # monotonic seconds
        self._failures = 0

    def poll(self, database: Database) -> int:
        """See `Watcher.poll`."""
        if self._asking is None:
            if time.monotonic() < self._next:
                return 0
            self._asking = self._threads.submit(self._ask, self._remembered_etag(database))
        try:
            found = self._asking.result(timeout=PATIENCE_S)
        except TimeoutError:
            return 0  # looked at again at the next poll
        except SourceError as error:
            self._asking = None
            self._note_down(database, error)
            return 0
        self._asking = None
        taken = 0 if found is None else self._take_all(database, found)
        self._note_up(database)
        return taken

    def check(self) -> str:
        """See `Watcher.check`."""
        found = self._ask("")
        count = 0 if found is None else len(found.items)
        return f"{self.spec.url or self.spec.kind} answers, {count} found"

    def _ask(self, etag: str) -> Fetched | None:
        with httpx.Client(
            timeout=TIMEOUT_S, headers=_credentials(self.spec), follow_redirects=False
        ) as client:
            try:
                return self._fetch(client, etag)
            except (AttributeError, KeyError, TypeError, ValueError) as error:  # an answer of another shape
                raise SourceError(
                    f"{self.spec.url}: the answer is not what a {self.spec.kind} source says"
                    f" ({type(error).__name__}: {str(error)[:100]})",
                    "check the url",
                ) from None

    # --- storing -------------------------------------------------------------------------------------------

    def _take_all(self, database: Database, found: Fetched) -> int:
        with database.read() as session:
            query = select(WatchedItem.key, WatchedItem.fingerprint).where(WatchedItem.watcher == self.name)
            seen = dict(session.exec(query).all())
        fresh = [item for item in found.items if seen.get(item.key) != item.fingerprint]
        taken = sum(self._take(database, item) for item in fresh)
        # Last, so that whatever stopped this in the middle makes the source be read again.
        if found.etag and seen.get(ETAG) != self._marked(found.etag):
            with database.begin() as session:
                remember(session, self.name, ETAG, self._marked(found.etag))
        return taken

    def _take(self, database: Database, item: Item) -> bool:
        try:
            with database.begin() as session:
                item.take(session)
                remember(session, self.name, item.key, item.fingerprint)
            return True
        except IntegrityError:
            log.info("watcher %s: another agent took '%s' first", self.name, item.key)
        except StorageError:
            raise  # the database's trouble, not the item's: it is taken at a later look
        except AssayError as error:
            report(database, self.name, item, str(error))
        except Exception as error:  # an item that stops the agent would stop it again after each restart
            log.exception("watcher %s: '%s' failed unexpectedly", self.name, item.key)
            report(database, self.name, item, f"unexpected {type(error).__name__}: {error}")
        return False

    # --- the source's state --------------------------------------------------------------------------------

    def _note_up(self, database: Database) -> None:
        self._failures = 0
        self._next = time.monotonic() + self.spec.interval_s
        with database.begin() as session:
            known = session.get(WatchedItem, (self.name, SOURCE))
            if known is not None and known.error:
                emit(session, "watcher.up", {"watcher": self.name})
            remember(session, self.name, SOURCE, "0")

    def _note_down(self, database: Database, error: SourceError) -> None:
        self._failures += 1
        wait = min(LONGEST_WAIT_S, self.spec.interval_s * 2.0 ** min(self._failures, 20))
        self._next = time.monotonic() + wait
        log.warning("watcher %s: %s; trying again in %.0f s", self.name, error, wait)
        with database.begin() as session:
            known = session.get(WatchedItem, (self.name, SOURCE))
            seen_at = known.seen_at if known is not None else None
            if known is None or not known.error:
                emit(session, "watcher.down", {"watcher": self.name, "error": str(error)})
            row = remember(session, self.name, SOURCE, str(self._failures), str(error))
            row.seen_at = seen_at or row.seen_at  # when it was last up

    def _remembered_etag(self, database: Database) -> str:
        """The ETag to ask with; none where the configuration has changed since."""
        with database.read() as session:
            known = session.get(WatchedItem, (self.name, ETAG))
        mark, _, etag = (known.fingerprint if known else "").partition(" ")
        return etag if mark == self._mark() else ""

    def _marked(self, etag: str) -> str:
        return f"{self._mark()} {etag}"

    def _mark(self) -> str:
        return fingerprint_of(self.spec.model_dump(mode="json"))


def remember(session: Session, watcher: str, key: str, fingerprint: str, error: str = "") -> WatchedItem:
    """Note what was seen, and what was wrong with it."""
    row = WatchedItem(watcher=watcher, key=key, fingerprint=fingerprint, error=error, seen_at=utc_now())
    return session.merge(row)


def fingerprint_of(content: object) -> str:
    """A short identity of JSON-able content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Answer:
    """What a URL answered."""

    content: bytes
    headers: httpx.Headers

    def json(self) -> Any:
        """The content as JSON; ValueError where it is none."""
        return json.loads(self.content)


def get(client: httpx.Client, url: str, etag: str = "", **params: str) -> Answer | None:
    """Read a URL; None where it has not changed since the ETag.

    Raises:
        SourceError: No answer, an answer with an error status, or one that is too large.
    """
    headers = {"If-None-Match": etag} if etag else {}
    try:
        with client.stream("GET", url, params=params or None, headers=headers) as answer:
            content = bytearray()
            for part in answer.iter_bytes():
                content += part
                if len(content) > LARGEST:
                    raise SourceError(f"{url} answers with more than {LARGEST} bytes", "check the url")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceError(
            f"{url} does not answer ({type(error).__name__})", "start it, or mend the url"
        ) from None
    if answer.status_code == httpx.codes.NOT_MODIFIED:
        return None
    if answer.status_code != httpx.codes.OK:
        hint = "check the key" if answer.status_code in (401, 403) else "check the url"
        raise SourceError(f"{url} answers with status {answer.status_code}", hint)
    return Answer(bytes(content), answer.headers)


def _credentials(spec: WatcherSpec) -> dict[str, str]:
    if spec.api_key_env is None:
        return {}
    key = os.environ.get(spec.api_key_env)
    if not key:
        raise SourceError(f"environment variable {spec.api_key_env} is not set", "set it for the agent")
    return {"Authorization": f"Bearer {key}"}


def remember_item(database: Database, spec: WatcherSpec, item: Item) -> bool:
    """Take one item that a source announced by itself; False where it was taken before or does not match.

    Raises:
        AssayError: It cannot be taken; that is noted, too.
    """
    if not fnmatch.fnmatchcase(item.key, spec.match):
        return False
    with database.read() as session:
        known = session.get(WatchedItem, (spec.label, item.key))
    if known is not None and known.fingerprint == item.fingerprint and not known.error:
        return False
    try:
        with database.begin() as session:
            item.take(session)
            remember(session, spec.label, item.key, item.fingerprint)
    except IntegrityError:  # the watcher itself was faster
        return False
    except StorageError:
        raise
    except AssayError as error:
        report(database, spec.label, item, str(error))
        raise
    return True


def report(database: Database, watcher: str, item: Item, reason: str) -> None:
    """Note why an item could not be taken, in the item and in an event."""
    with database.begin() as session:
        remember(session, watcher, item.key, item.fingerprint, reason)
        emit(session, "watcher.error", {"watcher": watcher, "item": item.key, "error": reason})
