"""Who may do what: bearer tokens with scopes, a rate limit per token, and a gate for the pages.

Reading asks for no token unless `require_token` says so; writing always asks for one. Only a bearer token in
the `Authorization` header counts, which no other site can make a browser send, so there is nothing to forge
across sites. (A browser does remember HTTP Basic, which the gate takes for reading; writing never takes it.)
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.api._problems import RefusedError, problem_response
from assay.errors import AssayError, StorageError
from assay.settings import Settings
from storage import tokens
from storage.database import Database
from storage.tables import ApiToken, utc_now

__all__ = ["Admin", "Gate", "Reader", "Reading", "Runner"]

CHALLENGE = 'Bearer realm="assay"'
HINT = "send 'Authorization: Bearer TOKEN'; make one with: assay token create NAME --scope {scope}"
OPEN_PATHS = ("/healthz", "/readyz", "/static/", "/api/")  # the API has its own checks


class Access:
    """Checks tokens against the database and counts their requests.

    The count is kept by each process of the API for itself.

    Args:
        database: Holds the tokens.
        settings: Says whether reading needs a token, and how many requests one may make.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self.open_reading = not settings.require_token
        self._limit = RateLimitItemPerMinute(settings.api_per_minute)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def check(self, presented: str | None, scope: str) -> ApiToken | None:
        """The token presented, if it may do what the scope allows; None for an anonymous reader.

        Raises:
            RefusedError: 401 without a valid token, 403 where it lacks the scope, 429 if used too often.
        """
        if presented is None and scope == "read" and self.open_reading:
            return None
        if presented is None:
            raise _unknown("no token was sent", scope)
        with self._database.read() as session:
            token = tokens.find(session, presented)
        if token is None:
            raise _unknown("the token is unknown, revoked or expired", scope)
        if not tokens.allows(token, scope):
            hint = f"make one with: assay token create NAME --scope {scope}"
            raise RefusedError(
                403, "Forbidden", f"token '{token.name}' may {token.scope}, this needs {scope}", hint
            )
        self._count(token)
        self._touch(token)
        return token

    def _count(self, token: ApiToken) -> None:
        if self._limiter.hit(self._limit, token.key):
            return
        reset, _ = self._limiter.get_window_stats(self._limit, token.key)
        wait = max(1, round(reset - time.time()))
        detail = f"token '{token.name}' made more than {self._limit.amount} requests in a minute"
        raise RefusedError(
            429,
            "Too many requests",
            detail,
            f"wait {wait} s, or raise ASSAY_API_PER_MINUTE",
            {"Retry-After": str(wait)},
        )

    def _touch(self, token: ApiToken) -> None:
        last = token.last_used_at
        if last is not None and utc_now() - last < tokens.TOUCH_EVERY:
            return
        try:
            with self._database.begin() as session:
                tokens.touch(session, token.id or 0)
        except StorageError:
            pass  # a note for people; the request does not depend on it


def _unknown(detail: str, scope: str) -> RefusedError:
    challenge = {"WWW-Authenticate": CHALLENGE}
    return RefusedError(401, "Not authenticated", detail, HINT.format(scope=scope), challenge)


# --- in the API --------------------------------------------------------------------------------------------

_bearer = HTTPBearer(auto_error=False, description="A token made with `assay token create`.")


def _bearer_token(request: Request) -> str | None:
    """The token of the header; anything else in the header counts as an unknown token."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    kind, _, value = header.partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _needs(scope: str) -> Callable[[Request], ApiToken | None]:
    def check(request: Request) -> ApiToken | None:
        access: Access = request.app.state.access
        return access.check(_bearer_token(request), scope)

    return check


def _session(request: Request) -> Iterator[Session]:
    with request.app.state.database.read() as session:
        yield session


Reader = [Depends(_bearer), Depends(_needs("read"))]
Runner = [Depends(_bearer), Depends(_needs("run"))]
Admin = [Depends(_bearer), Depends(_needs("admin"))]
Reading = Annotated[Session, Depends(_session)]


# --- before the pages --------------------------------------------------------------------------------------


class Gate:
    """ASGI middleware: where reading needs a token, pages need one too, by bearer or as a Basic password."""

    def __init__(self, app: ASGIApp, database: Database, settings: Settings) -> None:
        self.app = app
        self._access = Access(database, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, or answer 401."""
        if scope["type"] != "http" or self._access.open_reading or scope["path"].startswith(OPEN_PATHS):
            await self.app(scope, receive, send)
            return
        try:
            await run_in_threadpool(self._access.check, _page_token(scope), "read")
        except AssayError as error:
            response = problem_response(error)
            if response.status_code == 401:
                response.headers["WWW-Authenticate"] = 'Basic realm="assay: any name, token as password"'
            await response(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _page_token(scope: Scope) -> str | None:
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    kind, _, value = header.partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return value.strip() if kind.lower() == "bearer" else None
