"""Answers: data as JSON, and rendered answers that many readers share (compressed once, not sent again)."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any

from fastapi import Request, Response

__all__ = ["Body", "as_json"]

LEVEL = 3  # of gzip: most of the saving at a fraction of the time


@dataclass(frozen=True)
class Body:
    """The content of an answer.

    Attributes:
        plain: As it is.
        packed: Compressed by gzip.
        etag: Identity of the content (RFC 9110, weak: both forms carry the same).
        headers: Content type and the like.
    """

    plain: bytes
    packed: bytes
    etag: str
    headers: dict[str, str]

    @classmethod
    def of(cls, response: Response) -> Body:
        """Take over a rendered response."""
        plain = bytes(response.body)
        headers = {k: v for k, v in response.headers.items() if k != "content-length"}
        etag = f'W/"{hashlib.sha256(plain).hexdigest()[:24]}"'
        return cls(plain, gzip.compress(plain, LEVEL, mtime=0), etag, headers)

    def answer(self, request: Request) -> Response:
        """200 in the form that the reader takes, or 304 where it has the content already."""
        headers = {**self.headers, "ETag": self.etag, "Vary": "Accept-Encoding"}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self.packed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self.plain, headers=headers)


def as_json(data: Any, status: int = 200, media_type: str = "application/json") -> Response:
    """Page data as JSON; NaN never occurs in it (that would not be JSON)."""
    text = json.dumps(data, default=_plain, allow_nan=False, ensure_ascii=True)
    return Response(text, status, media_type=media_type)


def _plain(value: Any) -> Any:
    """What JSON has no form for: dataclasses (field by field) and times."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not JSON")
