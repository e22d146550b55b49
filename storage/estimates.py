"""Estimates: what the leaderboard shows, one row per method and step of a study."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func
from sqlmodel import Session, col, select

from storage.tables import Estimate

__all__ = ["add", "history", "latest"]


def add(session: Session, estimates: Sequence[Estimate]) -> None:
    """Store the estimates of one step."""
    session.add_all(estimates)
    session.flush()


def latest(session: Session, benchmark_id: int) -> Sequence[Estimate]:
    """The newest estimate of each method of a benchmark."""
    newest = (
        select(func.max(Estimate.id))
        .where(Estimate.benchmark_id == benchmark_id)
        .group_by(col(Estimate.method_id))
    )
    return session.exec(select(Estimate).where(col(Estimate.id).in_(newest))).all()


def history(session: Session, study_id: int) -> Sequence[Estimate]:
    """All estimates of a study, oldest first."""
    query = select(Estimate).where(Estimate.study_id == study_id).order_by(col(Estimate.id))
    return session.exec(query).all()
