"""Sheets for people: which pair of answers a token stands for, and which answer is shown first."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlmodel import Session, col, select

from storage.tables import SheetRow

__all__ = ["add_rows", "by_token", "rows_of"]


def add_rows(
    session: Session, study_id: int, cells: Sequence[tuple[int, int, int]], a_first: Sequence[bool]
) -> int:
    """Put (method A, method B, prompt) cells on the study's sheet; those that are there stay. Returns how
    many are new.
    """
    known = {(row.method_a_id, row.method_b_id, row.prompt_id) for row in rows_of(session, study_id)}
    new = [(cell, first) for cell, first in zip(cells, a_first, strict=True) if cell not in known]
    for (method_a, method_b, prompt), first in new:
        session.add(
            SheetRow(
                token=secrets.token_hex(8),
                study_id=study_id,
                method_a_id=method_a,
                method_b_id=method_b,
                prompt_id=prompt,
                a_first=first,
            )
        )
    session.flush()
    return len(new)


def rows_of(session: Session, study_id: int) -> list[SheetRow]:
    """The study's rows, in an order that says nothing (that of the tokens)."""
    query = select(SheetRow).where(SheetRow.study_id == study_id).order_by(col(SheetRow.token))
    return list(session.exec(query).all())


def by_token(session: Session, study_id: int) -> dict[str, SheetRow]:
    """The study's rows by token."""
    return {row.token: row for row in rows_of(session, study_id)}
