"""Who may steer studies through the pages, and how a forged request is told from a pressed button.

Without a login, only somebody at this machine may: the connection comes from a loopback address, asks for a
loopback name (another name that resolves to 127.0.0.1 does not count), and no proxy passed it on. Everybody
else uses the API with a token, or the command.

A forged request comes from another site's page in the same browser. It is refused twice: its Origin (or
Sec-Fetch-Site) is another, and it lacks the form's token, a keyed hash that other sites cannot read. There is
no cookie, so nothing is sent along by itself.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from urllib.parse import parse_qs, urlsplit

from fastapi import Request

__all__ = ["ForgedError", "form_token", "may_steer", "read_form", "refuse_forged"]

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
LARGEST_FORM = 4096  # bytes
KEY = secrets.token_bytes(32)  # of this process: a form of the process before is refused, and loaded again


class ForgedError(Exception):
    """A change that did not come from one of our own pages."""


def may_steer(request: Request) -> bool:
    """Whether the request comes from this machine itself."""
    settings = request.app.state.settings
    if not settings.web_steering or settings.require_token:
        return False  # where reading needs a token, writing needs one that may run: the API
    if any(name in request.headers for name in FORWARDED):
        return False
    client = request.client.host if request.client else ""
    return _is_loopback(client) and _is_loopback(request.url.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def form_token(path: str) -> str:
    """What the form that posts to a path carries."""
    return hmac.new(KEY, path.encode(), hashlib.sha256).hexdigest()


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a small posted form.

    Raises:
        ForgedError: It is no form of ours.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise ForgedError
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_FORM:
            raise ForgedError
    return {key: values[0] for key, values in parse_qs(body.decode("ascii", "replace")).items()}


def refuse_forged(request: Request, token: str) -> None:
    """Refuse a change that another site's page asked for.

    Raises:
        ForgedError: Another origin, or no token of ours.
    """
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ForgedError
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ForgedError
    if not hmac.compare_digest(token.encode(), form_token(request.url.path).encode()):
        raise ForgedError
