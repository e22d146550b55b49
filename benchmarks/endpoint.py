"""An OpenAI-compatible endpoint of ours that can do everything wrong, and counts what it bills.

It speaks just enough HTTP/1.1 over asyncio to be cheap (one core serves thousands of calls per second): what
is measured is its caller. A call is billed once per `Idempotency-Key`, when its answer is made, whether or
not the caller lives to read it; a key that was billed before is answered again and counted as a repeat.

`GET /bill` says what was billed, `GET /arrivals` when calls came.

Run with `python -m benchmarks.endpoint --port 9000 --latency-ms 200 --fault-rate 0.2`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["ANSWERED_WRONG", "Behaviour", "Fault", "LocalEndpoint", "serving", "tokens_of"]


class Fault(StrEnum):
    """What can go wrong with a call."""

    DELAY = "delay"
    REFUSE = "refuse"  # the connection is closed without a word
    BUSY = "busy"  # 429 with Retry-After
    BUSY_SILENT = "busy-silent"  # 429 without
    ERROR = "error"  # 500
    DROP = "drop"  # the connection ends in the middle of the body
    MALFORMED = "malformed"  # JSON that is none
    TRUNCATE = "truncate"  # finish_reason length
    LIE = "lie"  # usage that cannot be
    HANG = "hang"  # no answer at all
    EMPTY = "empty"  # usage, and no choices
    FILTER = "filter"  # refused by a content filter
    DENY = "deny"  # 400


#: Faults after which the call was answered, with something that says nothing about the method.
ANSWERED_WRONG = (Fault.TRUNCATE, Fault.EMPTY, Fault.FILTER)

NEVER_BILLED = (Fault.REFUSE, Fault.BUSY, Fault.BUSY_SILENT, Fault.ERROR, Fault.DENY)


@dataclass
class Behaviour:
    """How an endpoint behaves.

    Attributes:
        latency_s: Of each answer.
        fault_rate: Share of tries that go wrong, drawn from key and try alone.
        faults: Which faults are drawn.
        retry_after_s: Stated with `busy`.
        hang_s: Longest silence of `hang`.
        limit_per_s: Calls per second that are served; more are answered with 429. None = all.
        storm_s: For so many seconds from the first call on, everything is answered with 429.
        state_wait: Whether a 429 of the limit or the storm states Retry-After.
        answers: Model -> prompt -> answer; without them the answer is the prompt's last word.
        keep_arrivals: Whether the moments of arrival are kept.
    """

    latency_s: float = 0.0
    fault_rate: float = 0.0
    faults: tuple[Fault, ...] = tuple(Fault)
    retry_after_s: float = 0.2
    hang_s: float = 30.0
    limit_per_s: float | None = None
    storm_s: float = 0.0
    state_wait: bool = True
    answers: dict[str, dict[str, str]] | None = None
    keep_arrivals: bool = False
    seed: int = 0


@dataclass
class LocalEndpoint:
    """A running endpoint and its books.

    Attributes:
        url: Its base URL.
        billed: Idempotency key -> (prompt tokens, answer tokens).
        tries: Idempotency key -> calls that came.
        faults: Idempotency key -> faults of its tries, in their order.
        statuses: How often each HTTP status was answered; 0 = none.
        most_in_flight: Most calls at once.
    """

    behaviour: Behaviour
    url: str = ""
    billed: dict[str, tuple[int, int]] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    repeats: int = 0
    arrivals: list[float] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    _allowed_at: float = 0.0
    _first: float = 0.0

    def books(self) -> dict[str, Any]:
        """What `GET /bill` answers."""
        usage = {
            key: {"prompt_tokens": one, "completion_tokens": two} for key, (one, two) in self.billed.items()
        }
        return {
            "tries": sum(self.tries.values()),
            "repeats": self.repeats,
            "billed": usage,
            "statuses": dict(self.statuses),
            "most_in_flight": self.most_in_flight,
        }

    def fault_of(self, key: str, prompt: str) -> Fault | None:
        """This try's fault, by the prompt ("fault:hang ...", "once:hang ..." on the first) or by chance."""
        head, _, _ = prompt.partition(" ")
        if head.startswith("fault:"):
            return Fault(head.removeprefix("fault:"))
        if head.startswith("once:"):
            return Fault(head.removeprefix("once:")) if self.tries[key] == 1 else None
        rate = self.behaviour.fault_rate
        if not rate or (drawn := _unit_hash(self.behaviour.seed, key, self.tries[key])) >= rate:
            return None
        return self.behaviour.faults[int(drawn / rate * len(self.behaviour.faults))]

    def over_limit(self) -> float | None:
        """Seconds after which a call would be served, where it is not now."""
        now = time.monotonic()
        self._first = self._first or now
        if now - self._first < self.behaviour.storm_s:
            return self.behaviour.storm_s - (now - self._first)
        rate = self.behaviour.limit_per_s
        if rate is None:
            return None
        ahead = max(self._allowed_at, now) - now
        if ahead > 1.0:  # a second's calls may come at once
            return ahead - 1.0
        self._allowed_at = max(self._allowed_at, now) + 1 / rate
        return None


def tokens_of(prompt: str, answer: str) -> tuple[int, int]:
    """Prompt and answer tokens that the endpoint bills."""
    return len(prompt) // 4 + 8, len(answer) // 4 + 1


def _unit_hash(*parts: object) -> float:
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


class _Connection(asyncio.Protocol):
    """One connection; calls on it come one after the other."""

    def __init__(self, endpoint: LocalEndpoint) -> None:
        self._endpoint = endpoint
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        length = int(headers.get(b"content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            self._look(path.decode())
        else:
            self._call(json.loads(rest[:length]), headers.get(b"idempotency-key", b"").decode())

    def _look(self, path: str) -> None:
        found: Any = self._endpoint.books()
        if path.startswith("/arrivals"):
            found = self._endpoint.arrivals
        elif path.startswith("/v1/models"):
            found = {"object": "list", "data": []}
        self._send(200, json.dumps(found).encode())

    def _call(self, body: dict[str, Any], key: str) -> None:
        books = self._endpoint
        if books.behaviour.keep_arrivals:
            books.arrivals.append(time.time())
        books.tries[key] += 1
        wait = books.over_limit()
        if wait is not None:
            stated = {"Retry-After": f"{wait:.3f}"} if books.behaviour.state_wait else {}
            return self._send(429, b'{"error": {"message": "slow down"}}', stated)
        prompt = body["messages"][-1]["content"]
        fault = books.fault_of(key, prompt)
        books.faults.setdefault(key, []).append(fault or "")
        books.in_flight += 1
        books.most_in_flight = max(books.most_in_flight, books.in_flight)
        delay = books.behaviour.latency_s
        if fault == Fault.DELAY:
            delay += 5 * books.behaviour.latency_s + 0.05
        elif fault in NEVER_BILLED:
            delay = 0.0
        if delay:
            self._loop.call_later(delay, self._end, body, key, prompt, fault)
        else:
            self._end(body, key, prompt, fault)
        return None

    def _end(self, body: dict[str, Any], key: str, prompt: str, fault: Fault | None) -> None:
        books = self._endpoint
        books.in_flight -= 1
        if fault not in NEVER_BILLED:
            reply = self._answer(body, key, prompt)
        if fault == Fault.REFUSE:
            self._abort()
        elif fault == Fault.BUSY:
            self._send(429, b"{}", {"Retry-After": str(books.behaviour.retry_after_s)})
        elif fault == Fault.BUSY_SILENT:
            self._send(429, b"{}")
        elif fault == Fault.ERROR:
            self._send(500, b"oops")
        elif fault == Fault.DENY:
            self._send(400, b"{}")
        elif fault == Fault.HANG:
            books.statuses[0] += 1
            self._loop.call_later(books.behaviour.hang_s, self._abort)
        elif fault == Fault.DROP:
            content = json.dumps(reply).encode()
            self._send(200, content[: len(content) // 2], length=len(content))
            self._abort(after_s=0.01)
        elif fault == Fault.MALFORMED:
            self._send(200, json.dumps(reply).encode()[:-9])
        else:
            self._send(200, json.dumps(_distorted(reply, fault, key)).encode())

    def _answer(self, body: dict[str, Any], key: str, prompt: str) -> dict[str, Any]:
        books = self._endpoint
        known = books.behaviour.answers
        text = known[body["model"]][prompt] if known is not None else prompt.rsplit(" ", 1)[-1]
        usage = tokens_of(prompt, text)
        books.repeats += key in books.billed
        books.billed[key] = usage
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            ],
            "usage": {
                "prompt_tokens": usage[0],
                "completion_tokens": usage[1],
                "total_tokens": sum(usage),
            },
        }

    def _send(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self._endpoint.statuses[status] += 1
        lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines.append(f"Content-Length: {len(content) if length is None else length}")
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write("\r\n".join([*lines, "", ""]).encode() + content)

    def _abort(self, after_s: float = 0.0) -> None:
        if self._transport is not None:
            self._loop.call_later(after_s, self._transport.abort)


def _distorted(reply: dict[str, Any], fault: Fault | None, key: str) -> dict[str, Any]:
    """The answer as the fault leaves it."""
    choice = reply["choices"][0]
    if fault == Fault.TRUNCATE:
        choice["finish_reason"] = "length"
    elif fault == Fault.FILTER:
        choice["finish_reason"], choice["message"]["content"] = "content_filter", None
    elif fault == Fault.EMPTY:
        reply["choices"] = []
    elif fault == Fault.LIE:
        lies: list[Any] = [None, {}, {"prompt_tokens": -5, "completion_tokens": 3}]
        lies += [{"prompt_tokens": 10**9, "completion_tokens": 10**9}, {"prompt_tokens": "many"}]
        reply["usage"] = lies[int(_unit_hash("lie", key) * len(lies))]
    return reply


async def _serve(endpoint: LocalEndpoint, port: int, ready: threading.Event, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(endpoint), "127.0.0.1", port, backlog=1024)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    ready.set()
    async with server:
        await stop.wait()


@contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[LocalEndpoint]:
    """Serve from a thread of this process, on a free port."""
    endpoint, ready = LocalEndpoint(behaviour or Behaviour()), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    work = _serve(endpoint, 0, ready, stop)
    thread = threading.Thread(target=loop.run_until_complete, args=(work,), daemon=True)
    thread.start()
    ready.wait(5)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
        loop.close()


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path, nargs="?", help="JSON: model -> prompt -> answer")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--fault-rate", type=float, default=0.0)
    parser.add_argument("--faults", default="", help="which, separated by commas; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-per-s", type=float, help="more calls per second are answered with 429")
    parser.add_argument("--storm-s", type=float, default=0.0, help="429 for so long from the first call on")
    parser.add_argument("--silent", action="store_true", help="no Retry-After with those")
    options = parser.parse_args()
    behaviour = Behaviour(
        latency_s=options.latency_ms / 1000,
        fault_rate=options.fault_rate,
        faults=tuple(Fault(name) for name in options.faults.split(",") if name) or tuple(Fault),
        limit_per_s=options.limit_per_s,
        storm_s=options.storm_s,
        state_wait=not options.silent,
        answers=json.loads(options.answers.read_text(encoding="utf-8")) if options.answers else None,
        keep_arrivals=True,
        seed=options.seed,
    )
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(LocalEndpoint(behaviour), options.port, threading.Event(), asyncio.Event()))


if __name__ == "__main__":
    main()
