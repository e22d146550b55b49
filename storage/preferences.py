"""Preferences: a judge's verdict between two methods on a prompt, stored once per pair, prompt and scorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col, select

from storage.tables import Origin, Preference, utc_now

__all__ = ["PreferenceRow", "add_preferences", "known_preferences", "ordered_pair"]


@dataclass(frozen=True)
class PreferenceRow:
    """One verdict.

    Attributes:
        method_a_id: Method A.
        method_b_id: Method B; pairs are stored once, with A's id below B's (`ordered_pair`).
        prompt_id: The prompt.
        scorer_id: The judge.
        value: Preference for A: 1 = A, 0 = B, 0.5 = tie, between where the judge weighs.
        origin: Acquired or imported.
        details: Votes of each order, whether they flipped, the judge's words.
    """

    method_a_id: int
    method_b_id: int
    prompt_id: int
    scorer_id: int
    value: float
    origin: str = Origin.ACQUIRED
    details: dict[str, Any] = field(default_factory=dict)


def ordered_pair(method_id: int, other_id: int) -> tuple[int, int]:
    """The two as (A, B); jobs and preferences of a pair always name them in this order."""
    if method_id == other_id:
        raise ValueError(f"method {method_id} cannot be compared with itself")
    return min(method_id, other_id), max(method_id, other_id)


def add_preferences(session: Session, rows: Sequence[PreferenceRow]) -> None:
    """Store verdicts; one that is there already stays as it is.

    Raises:
        ValueError: A pair is not in the order of `ordered_pair`, or a value is outside [0, 1].
    """
    for row in rows:
        if row.method_a_id >= row.method_b_id:
            raise ValueError(f"the pair ({row.method_a_id}, {row.method_b_id}) is not in order")
        if not 0.0 <= row.value <= 1.0:
            raise ValueError(f"a preference is in [0, 1], not {row.value}")
    if not rows:
        return
    connection = session.connection()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    values = [{**vars(row), "created_at": utc_now()} for row in rows]
    connection.execute(dialect.insert(Preference).on_conflict_do_nothing(), values)


def known_preferences(
    session: Session, scorer_ids: Sequence[int], method_ids: Sequence[int]
) -> list[Preference]:
    """Every stored verdict of these judges between any two of the methods."""
    query = (
        select(Preference)
        .where(
            col(Preference.scorer_id).in_(list(scorer_ids)),
            col(Preference.method_a_id).in_(list(method_ids)),
            col(Preference.method_b_id).in_(list(method_ids)),
        )
        .order_by(col(Preference.id))
    )
    return list(session.exec(query).all())
