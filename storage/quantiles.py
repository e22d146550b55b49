"""Quantiles of a model's scores over its templates: what a distribution study found, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func
from sqlmodel import Session, col, select

from storage.tables import Quantile

__all__ = ["add", "latest", "of_study"]


def add(session: Session, quantiles: Sequence[Quantile]) -> None:
    """Store the quantiles of one step."""
    session.add_all(quantiles)
    session.flush()


def of_study(session: Session, study_id: int) -> list[Quantile]:
    """The quantiles of a study's newest step, ascending; none before its first."""
    newest = select(func.max(Quantile.step)).where(Quantile.study_id == study_id)
    query = select(Quantile).where(Quantile.study_id == study_id, Quantile.step == newest.scalar_subquery())
    return list(session.exec(query.order_by(col(Quantile.at))).all())


def latest(session: Session, benchmark_id: int) -> dict[int, list[Quantile]]:
    """By model, the newest quantiles on a benchmark, ascending."""
    newest = (
        select(Quantile.model_id, func.max(Quantile.study_id))
        .where(Quantile.benchmark_id == benchmark_id)
        .group_by(col(Quantile.model_id))
    )
    return {model: of_study(session, study) for model, study in session.exec(newest).all()}
