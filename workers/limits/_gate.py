"""The gate in front of an endpoint: calls wait here until the shared limits let them through."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import redis

from workers.limits._base import Grant, Limits, LimitStore, Report, Result, Want

__all__ = ["Closed", "Gate", "Permit"]

#: Waiting calls and finished ones are collected for so long before they are taken to the store together.
TOGETHER_S = 0.002

#: So many are let through at once. More would go as one convoy, come back as one, and keep each other waiting
#: for the processor while nothing is in flight.
MOST_TOGETHER = 8

#: Longest time between two looks while other workers hold all places.
LOOK_S = 0.05

#: A store that cannot be reached is asked again after this.
AWAY_S = 0.5

log = logging.getLogger(__name__)


class Closed(Exception):  # noqa: N818
    """The endpoint is left alone for longer than the caller wants to wait, or the gate is shut.

    Args:
        wait_s: Seconds after which it is worth trying again.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"closed for {wait_s:.1f} s")
        self.wait_s = wait_s


@dataclass(frozen=True)
class Permit:
    """A call that may be made now; `leave` must be called once when it is over."""

    want: Want
    granted_at: float
    _line: _Line

    def leave(self, result: Result, *, wait_s: float = 0.0, tokens: int | None = None) -> None:
        """Report what became of the call.

        Args:
            result: What it says of the endpoint.
            wait_s: Seconds for which the endpoint asked to be left alone.
            tokens: Tokens that it really used; None = not known.
        """
        more = 0 if tokens is None else tokens - self.want.tokens
        self._line.report(Report(self.want.id, result, self.granted_at, wait_s, more))


@dataclass
class _Waiting:
    want: Want
    future: asyncio.Future[float]
    patience_s: float


@dataclass
class _Line:
    """The calls of this process that wait for one endpoint."""

    endpoint: str
    limits: Limits
    store: LimitStore
    changed: Callable[[str, str, float], None]
    waiting: deque[_Waiting] = field(default_factory=deque)
    reports: list[Report] = field(default_factory=list)
    stir: asyncio.Event = field(default_factory=asyncio.Event)
    pump: asyncio.Task[None] | None = None

    def report(self, report: Report) -> None:
        self.reports.append(report)
        self._wake()

    async def enter(self, want: Want, patience_s: float) -> Permit:
        waiting = _Waiting(want, asyncio.get_running_loop().create_future(), patience_s)
        self.waiting.append(waiting)
        self._wake()
        try:
            return Permit(want, await waiting.future, self)
        except asyncio.CancelledError:
            if waiting.future.done() and not waiting.future.cancelled() and not waiting.future.exception():
                self.report(Report(want.id, Result.SILENT, tokens=-want.tokens))
            raise

    def _wake(self) -> None:
        self.stir.set()
        if self.pump is None or self.pump.done():
            self.pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self.waiting or self.reports:
            await asyncio.sleep(TOGETHER_S)
            self.stir.clear()
            grant = await self._exchange()
            if grant is None:
                await asyncio.sleep(AWAY_S)
                continue
            if grant.change:
                self.changed(self.endpoint, grant.change, grant.paused_s)
            self._let_through(grant)
            self._send_away(grant.paused_s)
            if self.waiting and grant.wait_s:
                # Slightly different for each process, so that they do not all ask at the same moment.
                wait_s = (grant.wait_s if grant.wait_s > 0 else LOOK_S) * random.uniform(1.0, 1.1)  # noqa: S311
                await self._pause(min(wait_s, 1.0))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stir.wait(), seconds)

    async def _exchange(self) -> Grant | None:
        reports, self.reports = self.reports, []
        self.waiting = deque(one for one in self.waiting if not one.future.done())
        wants = [one.want for one in itertools.islice(self.waiting, MOST_TOGETHER)]
        try:
            return await self.store.exchange(self.endpoint, self.limits, reports, wants)
        except (redis.RedisError, OSError) as error:
            log.warning("limits of %s: %s; waiting for the broker", self.endpoint, type(error).__name__)
            self.reports = [*reports, *self.reports]
            return None

    def _let_through(self, grant: Grant) -> None:
        for _ in range(grant.count):
            one = self.waiting.popleft()
            if one.future.done():  # given up meanwhile
                self.reports.append(Report(one.want.id, Result.SILENT, tokens=-one.want.tokens))
            else:
                one.future.set_result(grant.now)

    def _send_away(self, paused_s: float) -> None:
        """Whoever would have to wait too long comes back later."""
        kept: deque[_Waiting] = deque()
        for one in self.waiting:
            if paused_s <= one.patience_s:
                kept.append(one)
            elif not one.future.done():
                one.future.set_exception(Closed(paused_s))
        self.waiting = kept


class Gate:
    """The way of one process to all endpoints; to be used within one event loop.

    Args:
        store: Where the endpoints' states lie.
        changed: Told of pauses and circuits: (endpoint, "paused" | "opened" | "closed", seconds).
    """

    def __init__(self, store: LimitStore, changed: Callable[[str, str, float], None] | None = None) -> None:
        self._store = store
        self._changed = changed or (lambda endpoint, change, seconds: None)
        self._lines: dict[tuple[str, Limits], _Line] = {}
        self._name = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._shut = False

    async def enter(
        self, endpoint: str, limits: Limits, *, tokens: int = 0, patience_s: float = 5.0
    ) -> Permit:
        """Wait until a call may be made.

        Args:
            endpoint: Whose limits count.
            limits: What they are.
            tokens: Tokens that the call will probably use.
            patience_s: Longest pause of the endpoint that is waited for; pacing is always waited for.

        Raises:
            Closed: The endpoint is paused for longer, or this process is about to stop.
        """
        if self._shut:
            raise Closed(0.0)
        line = self._lines.get((endpoint, limits))
        if line is None:
            line = self._lines[endpoint, limits] = _Line(endpoint, limits, self._store, self._changed)
        return await line.enter(Want(f"{self._name}:{next(self._numbers)}", tokens), patience_s)

    def shut(self) -> None:
        """Let nobody through any more; whoever waits gets `Closed`."""
        self._shut = True
        for line in self._lines.values():
            for one in line.waiting:
                if not one.future.done():
                    one.future.set_exception(Closed(0.0))

    async def drain(self) -> None:
        """Wait until all reports have reached the store."""
        for line in self._lines.values():
            if line.pump is not None:
                await asyncio.wait([line.pump], timeout=2)
