"""When an estimator is fitted anew: so many new scores, new prompts, or so many hours since the last fit."""

from __future__ import annotations

from datetime import timedelta

from sqlmodel import Session, col, func, select

from assay.settings import Settings
from assay.statuses import Status
from storage import versions
from storage.events import emit
from storage.tables import (
    Benchmark,
    EstimatorVersion,
    Event,
    Job,
    JobState,
    Study,
    VersionState,
    utc_now,
)

__all__ = ["new_scores", "promote", "why_due", "want_due"]


def want_due(session: Session, settings: Settings) -> list[int]:
    """Ask for a challenger of every champion whose time has come; returns the versions asked for."""
    asked = []
    for champion in versions.champions(session):
        benchmark = session.get_one(Benchmark, champion.benchmark_id)
        reason = why_due(session, settings, benchmark, champion)
        if champion.policy and versions.usable(session, benchmark, champion.estimator, {}) is None:
            continue  # its estimator comes first
        if reason is not None and not _tried_since(session, champion):
            version = versions.want(
                session,
                benchmark,
                champion.estimator,
                champion.params,
                policy=champion.policy,
                reason=reason,
            )
            assert version.id is not None
            asked.append(version.id)
    return asked


def promote(session: Session, version_id: int, reason: str) -> EstimatorVersion:
    """Make a version the champion by hand, whatever its validation said, and announce it.

    Raises:
        NotFoundError: There is no such version.
        ConflictError: It was never fitted.
    """
    versions.crown(session, version_id, reason)
    version = versions.find(session, version_id)
    payload = {
        "version_id": version_id,
        "benchmark_id": version.benchmark_id,
        "estimator": version.estimator,
        "reason": reason,
    }
    emit(session, "estimator.promoted", payload)
    return version


def why_due(
    session: Session, settings: Settings, benchmark: Benchmark, champion: EstimatorVersion
) -> str | None:
    """The reason to fit a challenger now, or None."""
    if champion.prompts_revision != benchmark.prompts_revision:
        return "the prompts have changed"
    last = _last_fit(session, champion)
    if settings.retrain_scores:
        count = new_scores(session, benchmark, last)
        if count >= settings.retrain_scores:
            return f"{count} new scores"
    age = utc_now() - (last.trained_at or last.created_at)
    if settings.retrain_hours and age >= timedelta(hours=settings.retrain_hours):
        return f"last fitted {age.total_seconds() / 3600:.1f} hours ago"
    return None


def new_scores(session: Session, benchmark: Benchmark, since: EstimatorVersion) -> int:
    """Scores acquired and imported for the benchmark after a version was fitted."""
    when = since.trained_at or since.created_at
    acquired = (
        select(func.count())
        .select_from(Job)
        .join(Study, col(Study.id) == col(Job.study_id))
        .where(Study.benchmark_id == benchmark.id, Job.state == JobState.DONE, col(Job.finished_at) > when)
        .where(Job.status != Status.ANSWERED)  # an answer alone is no score
    )
    imports = select(Event.payload).where(Event.kind == "scores.imported", col(Event.created_at) > when)
    imported = sum(
        int(payload.get("scores", 0))
        for payload in session.exec(imports).all()
        if payload.get("benchmark_id") == benchmark.id
    )
    return int(session.exec(acquired).one()) + imported


def _last_fit(session: Session, champion: EstimatorVersion) -> EstimatorVersion:
    """The champion, or its newest challenger that was fitted and rejected: new scores count from there."""
    query = (
        select(EstimatorVersion)
        .where(EstimatorVersion.parent_id == champion.id, col(EstimatorVersion.trained_at).is_not(None))
        .order_by(col(EstimatorVersion.id).desc())
    )
    return session.exec(query).first() or champion


def _tried_since(session: Session, champion: EstimatorVersion) -> bool:
    """Whether a challenger for the present prompts is open, or failed after the champion's last fit."""
    benchmark = session.get_one(Benchmark, champion.benchmark_id)
    states = [VersionState.WANTED, VersionState.TRAINING, VersionState.FAILED]
    query = select(EstimatorVersion.id).where(
        EstimatorVersion.parent_id == champion.id,
        EstimatorVersion.prompts_revision == benchmark.prompts_revision,
        col(EstimatorVersion.state).in_(states),
    )
    return session.exec(query).first() is not None
