"""Page data into HTML (Jinja2, everything escaped) or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.body import as_json
from agent.leaderboard import INTERVAL_WORDS
from agent.text import ago, dollars, printable, printable_lines
from assay import __version__
from storage.tables import utc_now

__all__ = ["as_json", "html", "page", "problem"]


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        show=printable,
        lines=printable_lines,
        dollars=dollars,
        ago=lambda then: ago(then, utc_now()),
        clock=lambda then: then.strftime("%Y-%m-%d %H:%M:%S UTC"),
        percent=_percent,
        amount=_amount,
        sentence=lambda text: text[:1].upper() + text[1:] + ("" if text.endswith((".", "…")) else "."),
        brief=lambda payload: printable(json.dumps(payload, ensure_ascii=False), 300),
    )
    environment.globals.update(interval_words=INTERVAL_WORDS, version=__version__)
    return environment


def _percent(share: float) -> str:
    """Whole percents; a probability that is not 0 or 1 is never shown as such."""
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return ">99%"
    return f"{share:.0%}"


def _amount(value: int, unit: str) -> str:
    """An amount of a budget in its unit."""
    if unit == "usd":
        return dollars(value)
    return f"{value / 1000:,.1f} s" if unit == "gpu-ms" else f"{value:,}"


_ENVIRONMENT = _environment()


def page(template: str, **data: Any) -> str:
    """Render a page that belongs to no request."""
    return _ENVIRONMENT.get_template(template).render(**data)


def html(request: Request, template: str, status_code: int = 200, **data: Any) -> Response:
    """Render a page."""
    path = request.url.path
    text = _ENVIRONMENT.get_template(template).render(path=path, query=dict(request.query_params), **data)
    return Response(text, status_code, media_type="text/html; charset=utf-8")


def problem(request: Request, status: int, title: str, detail: str, hint: str) -> Response:
    """An error as a page, or as problem+json (RFC 9457) where JSON was asked for."""
    wants_json = (
        request.query_params.get("format") == "json"
        or request.url.path.startswith("/api/")  # a path with a line break, which no mount matches
        or request.url.path.endswith(".json")
        or "application/json" in request.headers.get("accept", "")
    )
    if wants_json:
        body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "hint": hint}
        return as_json(body, status, "application/problem+json")
    return html(request, "error.html", status, status=status, title=title, detail=detail, hint=hint)
