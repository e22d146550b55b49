"""JSON over HTTP with aiohttp, every failure as a `CallError` that says what it was and whether to retry.

aiohttp because of its price per call: with 64 calls of 200 ms in flight it reaches 92 % of what is possible,
httpx 19 % (64 % without keep-alive), the openai client over its aiohttp transport 68 % (0008-endpoints.md).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from assay.statuses import Status
from workers.backends._base import CallError

__all__ = ["JsonEndpoint", "Reply", "asked_wait"]

#: HTTP statuses below 500 after which the same call may succeed: timeout, conflict, too early, rate limit.
RETRIED = frozenset({408, 409, 425, 429})

#: Those that find fault with the request itself: a parameter that this endpoint does not know, say.
MALFORMED = frozenset({400, 415, 422, 501})

#: An endpoint that asks for a longer wait is asked again after this.
LONGEST_WAIT_S = 3600.0


class Reply(dict[str, Any]):
    """A JSON object that came back, and how long the endpoint wants to be left alone after it."""

    wait_s: float = 0.0


class _Connections:
    """The session of one event loop, shared by all that is open in it; connections outlive a batch."""

    _open: dict[asyncio.AbstractEventLoop, _Connections] = {}  # noqa: RUF012

    def __init__(self) -> None:
        # How much may be in flight is the limits' business.
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self.users = 0

    @classmethod
    def enter(cls) -> _Connections:
        loop = asyncio.get_running_loop()
        if loop not in cls._open:
            cls._open[loop] = cls()
        cls._open[loop].users += 1
        return cls._open[loop]

    async def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            del self._open[asyncio.get_running_loop()]
            await self.session.close()


class JsonEndpoint:
    """Posts JSON to one endpoint over kept-alive connections; to be used within one event loop.

    Args:
        url: Base URL.
        headers: Sent with every call.
        timeout_s: From the start of a call to its last byte.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = dict(headers)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._connections: _Connections | None = None

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """Post a body to a path below the base URL; the object that came back.

        Raises:
            CallError: Nothing usable came.
        """
        if self._connections is None:
            self._connections = _Connections.enter()
        all_headers = {**self._headers, **headers}
        try:
            async with self._connections.session.post(
                self._url + path, json=body, headers=all_headers, timeout=self._timeout
            ) as response:
                content = await response.read()
                return _reply(response.status, response.headers, content)
        except TimeoutError as error:
            raise CallError(
                "the endpoint did not answer in time", retry=True, status=Status.TIMEOUT, billed=None
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise CallError(
                f"the endpoint cannot be reached: {type(error.os_error).__name__}",
                retry=True,
                status=Status.UNREACHABLE,
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallError(
                f"the connection broke: {type(error).__name__}",
                retry=True,
                status=Status.UNREACHABLE,
                billed=None,
            ) from error
        except ValueError as error:  # an impossible URL or header
            raise CallError(f"the call cannot be made: {type(error).__name__}", retry=False) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            await self._connections.leave()
            self._connections = None


def _reply(status: int, headers: Mapping[str, str], content: bytes) -> Reply:
    if status >= 400:
        raise _status_error(status, headers, content)
    try:
        found = json.loads(content)
    except ValueError as error:
        raise CallError(
            f"the endpoint's answer cannot be read: {type(error).__name__}",
            retry=True,
            status=Status.UNREADABLE,
            billed=None,
        ) from error
    if not isinstance(found, dict):
        raise CallError(
            "the endpoint's answer lacks choices", retry=True, status=Status.UNREADABLE, billed=None
        )
    reply = Reply(found)
    reply.wait_s = _wait_of_limits(headers)
    return reply


def _status_error(status: int, headers: Mapping[str, str], content: bytes) -> CallError:
    reason = f"the endpoint answered with status {status}"
    if status == 429 and b"insufficient_quota" in content:  # waiting does not pay the bill
        return CallError(f"{reason}: the account's quota is used up", retry=False, status=Status.REJECTED)
    kind = Status.REJECTED
    if status >= 500:
        kind = Status.SERVER_ERROR
    elif status == 429:
        kind = Status.RATE_LIMITED
    elif status == 408:
        kind = Status.TIMEOUT
    retry = status in RETRIED or status >= 500
    return CallError(
        reason,
        retry=retry,
        retry_after=asked_wait(headers),
        status=kind,
        malformed_request=status in MALFORMED,
    )


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds for which an endpoint asks to be left alone: None where it says nothing that makes sense.

    Looked at in this order: retry-after-ms, Retry-After (seconds or date), the reset of a used-up rate limit.
    """
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        wait = _sensible(_number(headers.get(name)), factor)
        if wait is not None:
            return wait
    if (date := headers.get("retry-after")) is not None:
        return _until(date)
    return _wait_of_limits(headers) or None


def _wait_of_limits(headers: Mapping[str, str]) -> float:
    """Seconds until a rate limit that is used up is reset, by the headers x-ratelimit-*; 0 = none is."""
    used_up = [
        kind for kind in ("requests", "tokens") if _number(headers.get(f"x-ratelimit-remaining-{kind}")) == 0
    ]
    return max((_span(headers.get(f"x-ratelimit-reset-{kind}", "")) or 0.0 for kind in used_up), default=0.0)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _sensible(seconds: float | None, factor: float) -> float | None:
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return None
    return min(seconds * factor, LONGEST_WAIT_S)


def _until(date: str) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    seconds = (then - datetime.now(UTC)).total_seconds()
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else None


def _span(text: str) -> float | None:
    """Seconds of "1s", "6m0s", "20ms" or "1h2m3.5s", as endpoints spell the reset of a limit."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text)
    if not parts:
        return _sensible(_number(text), 1.0)
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return min(sum(float(number) * units[unit] for number, unit in parts), LONGEST_WAIT_S)
