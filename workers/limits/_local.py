"""Limits within one process: the same rules as in Redis, for runs without one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.limits._base import (
    BACKOFF_S,
    BREAKER_FAILURES,
    BURST_SHARE,
    GROWTH,
    LONGEST_BACKOFF_S,
    RATE_SHARE,
    Grant,
    Limits,
    Report,
    Result,
    Want,
)

__all__ = ["LocalStore"]


@dataclass
class _State:
    """An endpoint's state; see `_redis.py`, whose script keeps the same fields under the same names."""

    requests_at: float = 0.0
    tokens_at: float = 0.0
    pause: float = 0.0
    window: float = 0.0  # calls in flight that the endpoint bears; 0 = as many as the limit says
    threshold: float = 0.0
    cut: float = 0.0  # calls allowed before this moment say nothing of the present window
    strikes: int = 0
    failures: int = 0
    open: bool = False
    flight: dict[str, float] = field(default_factory=dict)


class LocalStore:
    """Keeps endpoints' states in memory."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._states: defaultdict[str, _State] = defaultdict(_State)
        self._clock = clock

    async def exchange(
        self, endpoint: str, limits: Limits, reports: Sequence[Report], wants: Sequence[Want]
    ) -> Grant:
        """See `LimitStore.exchange`."""
        state, now = self._states[endpoint], self._clock()
        state.flight = {key: until for key, until in state.flight.items() if until > now}
        change = ""
        for report in reports:
            change = _take(state, limits, report, now) or change
        count, wait_s = _allow(state, limits, wants, now)
        return Grant(count, now, wait_s, max(0.0, state.pause - now), change)


def _take(state: _State, limits: Limits, report: Report, now: float) -> str:
    flying = len(state.flight)
    state.flight.pop(report.id, None)
    if limits.tokens_per_minute:
        state.tokens_at += report.tokens * 60 / (limits.tokens_per_minute * RATE_SHARE)
    if report.wait_s > 0:
        state.pause = max(state.pause, now + report.wait_s)
    if report.granted_at < state.cut:
        return ""
    if report.result == Result.OK:
        return _answered(state, limits)
    if report.result == Result.BUSY:
        _cut(state, flying, report.wait_s, now)
        return "paused"
    if report.result == Result.FAILED:
        state.failures += 1
        if state.failures >= BREAKER_FAILURES or state.open:
            was_open, state.open = state.open, True
            _cut(state, flying, report.wait_s, now)
            return "" if was_open else "opened"
    return ""


def _answered(state: _State, limits: Limits) -> str:
    state.strikes, state.failures = 0, 0
    was_open, state.open = state.open, False
    if state.window:
        state.window += 1.0 if state.window < state.threshold else GROWTH / state.window
        if state.window >= limits.in_flight:
            state.window = 0.0
    return "closed" if was_open else ""


def _cut(state: _State, flying: int, wait_s: float, now: float) -> None:
    """Leave the endpoint alone for a while, then begin again with a single call."""
    state.strikes += 1
    state.threshold, state.window, state.cut = max(1.0, 0.75 * flying), 1.0, now
    if wait_s <= 0:
        delay = min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0 ** (state.strikes - 1))
        state.pause = max(state.pause, now + delay)


def _allow(state: _State, limits: Limits, wants: Sequence[Want], now: float) -> tuple[int, float]:
    if state.pause > now:
        return 0, state.pause - now
    places = min(limits.in_flight, int(state.window) or limits.in_flight) - len(state.flight)
    for count, want in enumerate(wants):
        if count >= places:
            return count, -1.0
        wait_s = max(_requests_wait(state, limits, now), _tokens_wait(state, limits, now))
        if wait_s > 0:
            return count, wait_s
        if limits.requests_per_minute:
            interval = 60 / (limits.requests_per_minute * RATE_SHARE)
            state.requests_at = max(state.requests_at, now) + interval
        if limits.tokens_per_minute:
            cost = want.tokens * 60 / (limits.tokens_per_minute * RATE_SHARE)
            state.tokens_at = max(state.tokens_at, now) + cost
        state.flight[want.id] = now + limits.lease_s
    return len(wants), 0.0


def _requests_wait(state: _State, limits: Limits, now: float) -> float:
    if not limits.requests_per_minute:
        return 0.0
    interval = 60 / (limits.requests_per_minute * RATE_SHARE)
    burst = max(1.0, BURST_SHARE * limits.requests_per_minute)
    return state.requests_at - now - (burst - 1) * interval


def _tokens_wait(state: _State, limits: Limits, now: float) -> float:
    return state.tokens_at - now - 60 * BURST_SHARE if limits.tokens_per_minute else 0.0
