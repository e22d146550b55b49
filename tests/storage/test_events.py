from __future__ import annotations

from storage import events
from storage.database import Database


def test_an_event_is_handled_once(db: Database):
    with db.begin() as session:
        event = events.emit(session, "prompts.added", {"added": 3})
        assert event is not None
        event_id = event.id or 0
    with db.begin() as session:
        assert [found.id for found in events.unhandled(session)] == [event_id]
        assert events.mark_handled(session, event_id)
    with db.begin() as session:
        assert not events.mark_handled(session, event_id)
        assert events.unhandled(session) == []


def test_a_key_absorbs_repetitions(db: Database):
    with db.begin() as session:
        assert events.emit(session, "model.registered", {}, key="model:1") is not None
        assert events.emit(session, "model.registered", {}, key="model:1") is None
        assert events.emit(session, "tick", {}) is not None
        assert events.emit(session, "tick", {}) is not None


def test_a_failed_event_is_kept_with_its_reason(db: Database):
    with db.begin() as session:
        event = events.emit(session, "model.registered", {})
        assert event is not None
        events.mark_failed(session, event.id or 0, "unknown policy 'x'")
    with db.read() as session:
        assert events.unhandled(session) == []
        assert events.recent(session)[0].error == "unknown policy 'x'"
