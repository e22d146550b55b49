"""A rendered answer that many readers share: compressed once, and not sent again to who has it."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass

from fastapi import Request, Response

__all__ = ["Body"]

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
