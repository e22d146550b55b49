"""Errors as problem+json (RFC 9457): what was wrong, where, and what to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from agent.text import printable
from assay.errors import (
    AssayError,
    BadInputError,
    BrokerError,
    BudgetExceededError,
    ConflictError,
    NotFoundError,
    StorageError,
    UnknownPriceError,
    UsageError,
)

__all__ = ["MEDIA_TYPE", "RefusedError", "add_handlers", "problem_response", "responses"]

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

#: Status and title of each kind of error; the first that fits counts.
KINDS: tuple[tuple[type[AssayError], int, str], ...] = (
    (NotFoundError, 404, "Not found"),
    (ConflictError, 409, "Not possible now"),
    (BudgetExceededError, 409, "Over the cap"),
    (UsageError, 422, "Wrong request"),
    (BadInputError, 422, "Wrong content"),
    (UnknownPriceError, 422, "Unknown price"),
    (StorageError, 503, "Database not available"),
    (BrokerError, 503, "Broker not available"),
)

#: What each status means, for the description of the API.
MEANINGS = {
    400: "The request cannot be read.",
    401: "No valid token was sent.",
    403: "The token lacks the scope.",
    404: "There is no such thing.",
    409: "What is there already, or its present state, does not allow it.",
    415: "The body has another media type than is needed.",
    413: "The body is larger than allowed.",
    422: "A value is wrong; `errors` says which.",
    429: "The token was used too often; `Retry-After` says how long to wait.",
    503: "The database cannot be used now.",
}


class RefusedError(AssayError):
    """A request that is refused with a status of its own."""

    def __init__(
        self, status: int, title: str, detail: str, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail, hint)
        self.status = status
        self.title = title
        self.headers = dict(headers or {})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer with, for its description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": MEANINGS[status], "content": content} for status in statuses}


def problem(
    status: int,
    title: str,
    detail: str,
    hint: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    errors: list[dict[str, str]] | None = None,
) -> Response:
    """A problem as a response."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "hint": hint,
        "errors": errors or [],
    }
    return Response(json.dumps(body), status, headers=headers, media_type=MEDIA_TYPE)


def problem_response(error: AssayError) -> Response:
    """An error of Assay's as a response."""
    if isinstance(error, RefusedError):
        return problem(error.status, error.title, error.message, error.hint, headers=error.headers)
    status, title = next(
        ((status, title) for kind, status, title in KINDS if isinstance(error, kind)), (500, "Failed")
    )
    if status >= 500:
        log.warning("%s", error)
    return problem(status, title, error.message, error.hint)


def add_handlers(app: FastAPI) -> None:
    """Turn every error into a problem."""
    app.add_exception_handler(AssayError, _assay_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _crash)


def _assay_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AssayError)
    return problem_response(error)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"where": ".".join(str(part) for part in found["loc"]), "what": printable(found["msg"])}
        for found in error.errors()
    ]
    detail = f"{errors[0]['where']}: {errors[0]['what']}" if errors else "the request is wrong"
    return problem(
        422, "Wrong request", detail, "see /api/v1/openapi.json for what is expected", errors=errors
    )


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    titles = {404: "Not found", 405: "Method not allowed", 413: "Too large"}
    hint = "see /api/v1/openapi.json for what there is" if error.status_code in (404, 405) else ""
    headers = {**(error.headers or {}), **({"Allow": _allowed(request)} if error.status_code == 405 else {})}
    title = titles.get(error.status_code, "Request refused")
    return problem(error.status_code, title, str(error.detail), hint, headers=headers)


def _allowed(request: Request) -> str:
    """The methods of the path, over all its routes."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    routes = request.app.state.routes
    path_format = next((route.path_format for route in routes if route.path_regex.match(path)), "")
    methods = {name for route in routes if route.path_format == path_format for name in route.methods}
    return ", ".join(sorted(methods))


def _crash(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    detail = f"an error that nobody foresaw: {type(error).__name__}"
    return problem(500, "Something went wrong", detail, "the server's log has the details; please report it")
