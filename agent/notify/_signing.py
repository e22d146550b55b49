"""Signatures of webhooks: HMAC-SHA256 over the time and the body."""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["HEADER", "sign", "verify"]

HEADER = "X-Assay-Signature"
TOLERANCE_S = 300.0


def sign(secret: str, body: bytes, at: int) -> str:
    """The header's value: `t=UNIX_SECONDS,v1=HEX`, over `UNIX_SECONDS.BODY`."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def verify(secret: str, body: bytes, header: str, now: float, tolerance_s: float = TOLERANCE_S) -> bool:
    """Whether a received webhook is genuine and recent; for receivers.

    Args:
        secret: The shared secret.
        body: The request's body, as received.
        header: Value of X-Assay-Signature.
        now: Unix time.
        tolerance_s: Greatest age in seconds; older ones may be replayed.
    """
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    at = parts.get("t", "")
    if not (at.isascii() and at.isdigit() and len(at) < 16) or abs(now - int(at)) > tolerance_s:
        return False
    return hmac.compare_digest(sign(secret, body, int(at)).encode(), header.encode())
