"""Events: what happened, stored with the rows it announces, handled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import update
from sqlmodel import Session, col, select

from storage.tables import Event, utc_now

__all__ = ["emit", "mark_failed", "mark_handled", "recent", "unhandled"]


def emit(session: Session, kind: str, payload: dict[str, Any], *, key: str | None = None) -> Event | None:
    """Store an event in the caller's transaction.

    Args:
        session: A writing session.
        kind: Such as "model.registered".
        payload: JSON-able facts: ids and names, never secrets.
        key: Where given, a second event with the same key is not stored.

    Returns:
        The event, or None where its key was there already.
    """
    if key is not None and session.exec(select(Event.id).where(Event.key == key)).first() is not None:
        return None
    event = Event(kind=kind, payload=payload, key=key)
    session.add(event)
    session.flush()
    return event


def unhandled(session: Session, limit: int = 100) -> Sequence[Event]:
    """The oldest events that nobody has handled yet."""
    query = select(Event).where(col(Event.handled_at).is_(None)).order_by(col(Event.id)).limit(limit)
    return session.exec(query).all()


def mark_handled(session: Session, event_id: int) -> bool:
    """Mark an event handled; False where another agent was first, so that the caller must roll back."""
    statement = (
        update(Event)
        .where(col(Event.id) == event_id, col(Event.handled_at).is_(None))
        .values(handled_at=utc_now())
    )
    return bool(session.connection().execute(statement).rowcount)


def mark_failed(session: Session, event_id: int, error: str) -> None:
    """Mark an event handled with the reason why nothing came of it."""
    statement = (
        update(Event).where(col(Event.id) == event_id).values(handled_at=utc_now(), error=error[:2000])
    )
    session.connection().execute(statement)


def recent(session: Session, limit: int = 50) -> Sequence[Event]:
    """The newest events, newest first."""
    return session.exec(select(Event).order_by(col(Event.id).desc()).limit(limit)).all()
