"""How large a request may be."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.api._problems import problem

__all__ = ["BodyLimit"]

LARGEST = 4_000_000


class BodyLimit:
    """ASGI middleware that refuses bodies over the limit, whether or not they say their length beforehand.

    Args:
        app: The application.
        import_bytes: Limit of bulk imports (media type application/x-ndjson), which are read as they come.
    """

    def __init__(self, app: ASGIApp, import_bytes: int) -> None:
        self.app = app
        self._import_bytes = import_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        bulk = headers.get(b"content-type", b"").startswith(b"application/x-ndjson")
        limit = self._import_bytes if bulk else LARGEST
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > limit:
            await _too_large(limit)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413, f"the body is larger than {limit} bytes")
            return message

        await self.app(scope, counted, send)


def _too_large(limit: int) -> ASGIApp:
    return problem(
        413,
        "Too large",
        f"the body is larger than {limit} bytes",
        "send it in parts, or raise ASSAY_API_IMPORT_MB",
    )
