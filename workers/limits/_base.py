"""The words of rate limiting: what an endpoint may be asked, and what became of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from assay.specs import ModelSpec

__all__ = [
    "BACKOFF_S",
    "BREAKER_FAILURES",
    "BURST_SHARE",
    "GROWTH",
    "LONGEST_BACKOFF_S",
    "RATE_SHARE",
    "Grant",
    "LimitStore",
    "Limits",
    "Report",
    "Result",
    "Want",
    "endpoint_of",
]

#: Calls are paced at this share of the limit, with bursts of at most another small share: the endpoint
#: sees at most the limit in any window of 60 s although calls arrive a little later than they are let go.
RATE_SHARE = 0.98
BURST_SHARE = 0.01

#: So many failures in a row, from all workers together, open the circuit.
BREAKER_FAILURES = 10

#: First pause after a 429 without Retry-After and after an opened circuit; it doubles up to the longest.
BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 60.0

#: How much of a place each success adds once the calls in flight have come to where the endpoint refused.
GROWTH = 0.5


@dataclass(frozen=True)
class Limits:
    """What an endpoint may be asked at most, by all workers together.

    Attributes:
        in_flight: Calls at once.
        requests_per_minute: Calls in any 60 s; None = no limit.
        tokens_per_minute: Tokens of the prompts and answers in any 60 s; None = no limit.
        lease_s: A place of a worker that died is free again after so many seconds.
    """

    in_flight: int
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    lease_s: float = 120.0

    @classmethod
    def of(cls, spec: ModelSpec) -> Limits:
        """The limits that a model's description states."""
        return cls(spec.max_in_flight, spec.requests_per_minute, spec.tokens_per_minute, spec.timeout_s + 30)


class Result(StrEnum):
    """What a call says of its endpoint."""

    OK = "ok"  # it answered
    BUSY = "busy"  # it asked to be left alone (429)
    FAILED = "failed"  # no connection, no answer in time, 5xx
    SILENT = "silent"  # nothing: the call was not made, or its fault is its own


@dataclass(frozen=True)
class Want:
    """A call that waits to be made: its id, unique among all workers, and its probable tokens."""

    id: str
    tokens: int = 0


@dataclass(frozen=True)
class Report:
    """A call that came to its end.

    Attributes:
        id: As in `Want`.
        result: What it says of the endpoint.
        granted_at: The store's time at which it was allowed.
        wait_s: Seconds for which the endpoint asked to be left alone; 0 = it said nothing.
        tokens: Tokens used beyond the expected ones (negative: fewer).
    """

    id: str
    result: Result
    granted_at: float = 0.0
    wait_s: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Grant:
    """What a store allows.

    Attributes:
        count: So many of the wanted calls, from the first on, may be made now.
        now: The store's time.
        wait_s: Seconds until it is worth asking again; -1 = when a place is given back.
        paused_s: Seconds for which the endpoint is left alone.
        change: "paused", "opened" or "closed" where the reports brought that about, else "".
    """

    count: int
    now: float
    wait_s: float = 0.0
    paused_s: float = 0.0
    change: str = ""


class LimitStore(Protocol):
    """Keeps the state of endpoints; one exchange reports finished calls and asks for new ones, atomically."""

    async def exchange(
        self, endpoint: str, limits: Limits, reports: Sequence[Report], wants: Sequence[Want]
    ) -> Grant:
        """Take the reports, then allow as many of the wanted calls as the limits leave room for."""
        ...


def endpoint_of(spec: ModelSpec) -> str:
    """Name of what limits and endpoint budgets count for: the base URL, and the account by its key's name."""
    if spec.base_url is None:
        return f"{spec.backend}:{spec.name}"
    url = spec.base_url.rstrip("/")
    return url if spec.api_key_env is None else f"{url}#{spec.api_key_env}"
