"""From an event to the message about it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from sqlmodel import Session, col, select

from agent.notify._base import Message
from agent.text import amount, budget_name, cap_in_words, printable
from assay.specs import NotifySpec
from storage.tables import Budget, Estimate, Event, Method

__all__ = ["message_of", "wants"]

SHOWN = 5  # estimates, and places of a ranking, that a message names


def wants(spec: NotifySpec, event: Event) -> bool:
    """Whether a target asks for such events."""
    return any(fnmatchcase(event.kind, pattern) for pattern in spec.on)


def message_of(session: Session, event: Event) -> Message:
    """What to say about an event."""
    title, text = _words(session, event.kind, event.payload)
    return Message(
        id=f"event-{event.id}",
        kind=event.kind,
        title=title,
        text=text,
        facts=event.payload,
        at=event.created_at.isoformat(),
    )


def _words(session: Session, kind: str, facts: dict[str, Any]) -> tuple[str, str]:
    subject, _, what = kind.partition(".")
    if kind.startswith("study."):
        return _study(session, what, facts)
    if kind == "rank.changed":
        return _ranks(facts)
    if "budget_id" in facts and (budget := session.get(Budget, facts["budget_id"])) is not None:
        return _budget(what, facts, budget)
    name = next(
        (printable(facts[key], 80) for key in ("watcher", "endpoint", "scope", "name") if key in facts), ""
    )
    title = " ".join(part for part in (subject, name, what) if part)
    told = [f"{key}: {printable(value, 300)}" for key, value in facts.items()]
    return _capital(title), "\n".join(told) or "No details."


def _study(session: Session, what: str, facts: dict[str, Any]) -> tuple[str, str]:
    number, benchmark = facts.get("study_id"), printable(facts.get("benchmark", ""), 80)
    title = f"Study {number}{f' on {benchmark}' if benchmark else ''} {what}"
    lines = [_capital(printable(facts["reason"], 400))] if facts.get("reason") else []
    return title, "\n".join([*lines, *_estimates(session, number)]) or title


def _estimates(session: Session, study_id: Any) -> list[str]:
    """The newest estimates of a study's methods, the best first."""
    query: Any = (
        select(Estimate, Method.name)
        .join(Method, col(Method.id) == col(Estimate.method_id))
        .where(Estimate.study_id == study_id)
        .order_by(col(Estimate.step))
    )
    newest = {name: estimate for estimate, name in session.exec(query).all()}
    best = sorted(newest.items(), key=lambda item: -item[1].score)[:SHOWN]
    return [f"{printable(name, 80)}: {e.score:.3f} ({e.low:.3f} to {e.high:.3f})" for name, e in best]


def _budget(what: str, facts: dict[str, Any], budget: Budget) -> tuple[str, str]:
    """The budget as it was at the time of the event, as far as the event says so."""
    at_that_time: dict[str, Any] = {key: facts[key] for key in ("cap", "spent") if key in facts}
    then = Budget(**{**budget.model_dump(), **at_that_time})
    cap, spent = cap_in_words(then), amount(then.spent, then.unit)
    share = f"{100 * then.spent / then.cap:.0f} %" if then.cap else "all"
    return f"Budget {what}: {budget_name(then)}", f"{spent} spent, {share} of {cap}."


def _ranks(facts: dict[str, Any]) -> tuple[str, str]:
    before, after = list(facts.get("before", [])), list(facts.get("after", []))
    was = {name: place for place, name in enumerate(before, 1)}
    lines = [
        f"{place}. {printable(name, 80)}"
        + ("" if was.get(name) == place else f" (was {was.get(name, 'below')})")
        for place, name in enumerate(after[:SHOWN], 1)
    ]
    return f"New ranking on {printable(facts.get('benchmark', ''), 80)}", "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
