"""Estimates: what the leaderboard shows, one row per method and step of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from storage.tables import Estimate

__all__ = ["add", "history", "latest", "newest_ids"]


def add(session: Session, estimates: Sequence[Estimate]) -> None:
    """Store the estimates of one step."""
    session.add_all(estimates)
    session.flush()


def newest_ids(benchmark_id: int) -> Any:
    """Selects the id of the newest estimate of each method of a benchmark."""
    return (
        select(func.max(Estimate.id))
        .where(Estimate.benchmark_id == benchmark_id)
        .group_by(col(Estimate.method_id))
    )


def latest(session: Session, benchmark_id: int) -> Sequence[Estimate]:
    """The newest estimate of each method of a benchmark."""
    query = select(Estimate).where(col(Estimate.id).in_(newest_ids(benchmark_id)))
    return session.exec(query).all()


def history(session: Session, study_id: int) -> Sequence[Estimate]:
    """All estimates of a study, oldest first."""
    query = select(Estimate).where(Estimate.study_id == study_id).order_by(col(Estimate.id))
    return session.exec(query).all()
