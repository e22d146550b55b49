"""Leaderboards and what is rendered of them, shared by all readers until something they show has changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sqlalchemy import func
from sqlmodel import Session, col, select

from agent.leaderboard import Leaderboard, build
from storage.catalog import find_benchmark
from storage.tables import Benchmark, Estimate, Event, Model

__all__ = ["Boards", "Shared"]

T = TypeVar("T")
BENCHMARKS = 100  # leaderboards kept
STALE_S = 5.0  # how long a value is given out that is being made anew
COSTLY_S = 0.1  # processor seconds from which on a value is not made at every change, ...
REST = 5.0  # ... but rests for so many times what it cost: making takes a sixth of the time at most


@dataclass(frozen=True)
class _Made(Generic[T]):
    state: Hashable
    value: T
    at: float  # monotonic seconds
    rests_until: float  # monotonic seconds; given out until then whatever the state


class _Slot(Generic[T]):
    def __init__(self) -> None:
        self.making = threading.Lock()
        self.made: _Made[T] | None = None
        self.current = 0.0  # monotonic seconds when it was last known to be current


class Shared(Generic[T]):
    """Values by name, each made once per state by one thread, however many ask for it.

    While a value is being made anew, the others are given the one before, if it was current `STALE_S` ago:
    readers of a page whose study runs do not queue up behind every new score.

    Args:
        kept: Names kept; the one longest unused goes first.
        longest_s: Seconds after which a value is made anew also in the same state.
    """

    def __init__(self, kept: int, longest_s: float = float("inf")) -> None:
        self._kept = kept
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot[T]] = OrderedDict()

    def get(self, name: Hashable, state: Hashable, make: Callable[[], T]) -> T:
        """The value of `name` in this state, from `make` where it is not there yet."""
        slot = self._slot(name)
        if (made := self._fresh(slot, state)) is not None:
            return made.value
        before = slot.made
        recent = before is not None and time.monotonic() - slot.current < STALE_S
        if not slot.making.acquire(blocking=not recent):
            assert before is not None
            return before.value
        try:
            made = self._fresh(slot, state) or self._make(state, make)
            slot.made, slot.current = made, time.monotonic()
            return made.value
        finally:
            slot.making.release()

    @staticmethod
    def _make(state: Hashable, make: Callable[[], T]) -> _Made[T]:
        start = time.thread_time()
        value = make()
        cost, now = time.thread_time() - start, time.monotonic()
        return _Made(state, value, now, now + REST * cost if cost >= COSTLY_S else now)

    def _fresh(self, slot: _Slot[T], state: Hashable) -> _Made[T] | None:
        made, now = slot.made, time.monotonic()
        if made is None or now - made.at >= self._longest_s:
            return None
        if made.state != state and now >= made.rests_until:
            return None
        slot.current = now
        return made

    def _slot(self, name: Hashable) -> _Slot[T]:
        with self._lock:
            slot = self._slots.setdefault(name, _Slot())
            self._slots.move_to_end(name)
            if len(self._slots) > self._kept:
                self._slots.popitem(last=False)
            return slot


class Boards:
    """The leaderboards of one database.

    Args:
        cache: Folder for what was counted before; see `agent.leaderboard.build`.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._shared: Shared[Leaderboard] = Shared(BENCHMARKS)

    def get(self, session: Session, name: str) -> Leaderboard:
        """The benchmark's leaderboard; see `agent.leaderboard.build`."""
        state = _state(session, name)
        return self._shared.get(name, state, lambda: build(session, name, self._cache))


def _state(session: Session, name: str) -> Hashable:
    """Changes whenever the leaderboard may: scores, prompts, estimates, studies (events), retirements."""
    newest = select(func.max(Estimate.id)).where(Estimate.benchmark_id == Benchmark.id).scalar_subquery()
    happened = select(func.max(Event.id)).scalar_subquery()
    retired = select(func.count(col(Model.retired_at))).scalar_subquery()
    query = select(  # type: ignore[call-overload]
        Benchmark.id,
        Benchmark.created_at,
        Benchmark.revision,
        Benchmark.prompts_revision,
        newest,
        happened,
        retired,
    ).where(Benchmark.name == name)
    found = session.exec(query).first()
    if found is None:
        find_benchmark(session, name)  # says which benchmarks there are
    return tuple(found)
