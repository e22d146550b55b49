"""The outbox: notifications stored with their event, claimed by lease, sent until they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, or_, update
from sqlmodel import Session, col, func, select

from storage.tables import Notification, NotificationState, utc_now

__all__ = ["again", "any_due", "claim", "counts", "enqueue", "failed", "recent", "requeue_failed", "sent"]


def enqueue(session: Session, event_id: int | None, target: str, message: dict[str, Any]) -> bool:
    """Store a notification in the caller's transaction; False where the event has one for the target."""
    if event_id is not None:
        known = select(Notification.id).where(
            Notification.event_id == event_id, Notification.target == target
        )
        if session.exec(known).first() is not None:
            return False
    session.add(Notification(event_id=event_id, target=target, message=message))
    session.flush()
    return True


def _due(now: datetime) -> list[ColumnElement[bool]]:
    return [
        col(Notification.state) == NotificationState.QUEUED,
        or_(col(Notification.not_before).is_(None), col(Notification.not_before) <= now),
        or_(col(Notification.lease_until).is_(None), col(Notification.lease_until) <= now),
    ]


def any_due(session: Session) -> bool:
    """Whether something waits to be sent now."""
    return session.exec(select(Notification.id).where(*_due(utc_now())).limit(1)).first() is not None


def claim(session: Session, owner: str, lease: timedelta) -> Notification | None:
    """Take the oldest notification that is due for the length of a lease; counts as a try."""
    now = utc_now()
    oldest = (
        select(Notification.id)
        .where(*_due(now))
        .order_by(col(Notification.id))
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    found = session.exec(oldest).first()
    if found is None:
        return None
    statement = (
        update(Notification)
        .where(col(Notification.id) == found)
        .values(lease_owner=owner, lease_until=now + lease, attempts=Notification.attempts + 1)
    )
    session.connection().execute(statement)
    return session.get_one(Notification, found, populate_existing=True)


def sent(session: Session, pk: int, owner: str) -> None:
    """It arrived."""
    _close(session, pk, owner, state=NotificationState.SENT, sent_at=utc_now(), error="")


def again(session: Session, pk: int, owner: str, error: str, wait: timedelta) -> None:
    """It did not arrive; try again after a while."""
    _close(session, pk, owner, not_before=utc_now() + wait, error=error[:2000])


def failed(session: Session, pk: int, owner: str, error: str) -> None:
    """It did not arrive and is given up."""
    _close(session, pk, owner, state=NotificationState.FAILED, error=error[:2000])


def _close(session: Session, pk: int, owner: str, **values: Any) -> None:
    """Only whoever holds the lease may say how it went."""
    statement = (
        update(Notification)
        .where(col(Notification.id) == pk, col(Notification.lease_owner) == owner)
        .values(lease_owner=None, lease_until=None, **values)
    )
    session.connection().execute(statement)


def requeue_failed(session: Session) -> int:
    """Send once more what was given up; returns how many there are."""
    statement = (
        update(Notification)
        .where(col(Notification.state) == NotificationState.FAILED)
        .values(state=NotificationState.QUEUED, attempts=0, not_before=None)
    )
    return int(session.connection().execute(statement).rowcount)


def counts(session: Session) -> dict[str, int]:
    """Notifications by state."""
    query = select(Notification.state, func.count()).group_by(col(Notification.state))
    return dict(session.exec(query).all())


def recent(session: Session, limit: int = 50) -> Sequence[Notification]:
    """The newest notifications, newest first."""
    return session.exec(select(Notification).order_by(col(Notification.id).desc()).limit(limit)).all()
