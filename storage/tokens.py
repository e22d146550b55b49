"""API tokens: shown once, stored as a hash, compared in constant time.

A token is `assay_<id>_<secret>`: the id (8 hexadecimal digits) finds the row, the secret (256 random bits)
proves the right. Of such a secret one SHA-256 is enough: it cannot be guessed, so a slow hash would protect
nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlmodel import Session, col, select

from assay.errors import ConflictError, NotFoundError, UsageError
from storage.tables import ApiToken, utc_now

__all__ = ["SCOPES", "allows", "create", "find", "list_all", "revoke", "touch"]

#: Each scope includes those before it.
SCOPES = ("read", "run", "admin")

MARK = "assay"
#: How often the time of the last use is written: a write per request would cost more than the request.
TOUCH_EVERY = timedelta(minutes=1)
#: What an unknown token is compared with, so that it takes as long as a known one.
NOBODY = hashlib.sha256(b"nobody").hexdigest()


def create(
    session: Session, name: str, scope: str, *, lifetime: timedelta | None = None
) -> tuple[ApiToken, str]:
    """Make a token; returns its row and the token itself, which cannot be read again.

    Raises:
        UsageError: The scope is unknown.
        ConflictError: The name is taken.
    """
    if scope not in SCOPES:
        raise UsageError(f"unknown scope '{scope}'", f"use one of: {', '.join(SCOPES)}")
    if session.exec(select(ApiToken.id).where(ApiToken.name == name)).first() is not None:
        raise ConflictError(f"there is a token '{name}' already", "choose another name: assay token list")
    key, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    expires = None if lifetime is None else utc_now() + lifetime
    token = ApiToken(name=name, key=key, digest=_digest(secret), scope=scope, expires_at=expires)
    session.add(token)
    session.flush()
    return token, f"{MARK}_{key}_{secret}"


def find(session: Session, presented: str) -> ApiToken | None:
    """The valid token that was presented; None where it is unknown, revoked or expired."""
    mark, _, rest = presented.partition("_")
    key, _, secret = rest.partition("_")
    known = session.exec(select(ApiToken).where(ApiToken.key == key)).first() if mark == MARK else None
    same = hmac.compare_digest(known.digest if known else NOBODY, _digest(secret))
    return known if known is not None and same and _valid(known, utc_now()) else None


def allows(token: ApiToken, scope: str) -> bool:
    """Whether the token's scope includes another."""
    return SCOPES.index(token.scope) >= SCOPES.index(scope)


def touch(session: Session, token_id: int) -> None:
    """Note that a token was used."""
    token = session.get(ApiToken, token_id)
    if token is not None:
        token.last_used_at = utc_now()
        session.add(token)


def list_all(session: Session) -> Sequence[ApiToken]:
    """All tokens, oldest first; never their secrets."""
    return session.exec(select(ApiToken).order_by(col(ApiToken.id))).all()


def revoke(session: Session, name: str) -> ApiToken:
    """Make a token useless from now on; doing so again changes nothing.

    Raises:
        NotFoundError: There is no token of that name.
    """
    token = session.exec(select(ApiToken).where(ApiToken.name == name)).first()
    if token is None:
        raise NotFoundError(f"there is no token '{name}'", "list them with: assay token list")
    token.revoked_at = token.revoked_at or utc_now()
    session.add(token)
    return token


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _valid(token: ApiToken, now: datetime) -> bool:
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)
