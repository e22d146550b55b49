"""What went wrong and why: jobs set aside, failed events, studies, fits and watched files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from storage.tables import (
    Benchmark,
    Dataset,
    EstimatorVersion,
    Event,
    Job,
    JobState,
    Method,
    Prompt,
    Study,
    StudyState,
    VersionState,
    WatchedItem,
)

__all__ = ["FailureGroup", "JobLine", "TroublePage", "WatcherLine", "trouble_page", "watcher_lines"]

SHOWN = 50
GROUPS = 100


@dataclass(frozen=True)
class FailureGroup:
    """Jobs that were set aside, or tried again, for the same reason."""

    method: str
    state: str
    reason: str
    jobs: int
    latest: datetime | None


@dataclass(frozen=True)
class JobLine:
    """One job that was set aside."""

    id: int
    study_id: int
    method: str
    prompt_id: int
    prompt: str
    attempts: int
    reason: str
    finished_at: datetime | None


@dataclass(frozen=True)
class Failure:
    """Anything else that failed: what, why, when, and where to look."""

    what: str
    reason: str
    at: datetime | None
    link: str


@dataclass(frozen=True)
class WatcherLine:
    """A watcher: how much it saw, when it last saw something new, and what it could not take.

    `down` says why its source does not answer, where it does not; `up_at` when it last did, where known.
    """

    name: str
    down: str
    up_at: datetime | None
    seen: int
    failed: int
    latest: datetime | None
    error: str
    error_key: str


@dataclass(frozen=True)
class TroublePage:
    """Everything that failed, newest first; `waiting` counts jobs that are tried again."""

    groups: tuple[FailureGroup, ...]
    jobs: tuple[JobLine, ...]
    studies: tuple[Failure, ...]
    events: tuple[Failure, ...]
    versions: tuple[Failure, ...]
    items: tuple[Failure, ...]

    @property
    def none(self) -> bool:
        """Whether nothing failed."""
        return not (self.groups or self.studies or self.events or self.versions or self.items)


def trouble_page(session: Session) -> TroublePage:
    """All failures."""
    return TroublePage(
        groups=tuple(_groups(session)),
        jobs=tuple(_jobs(session)),
        studies=tuple(_studies(session)),
        events=tuple(_events(session)),
        versions=tuple(_versions(session)),
        items=tuple(_items(session)),
    )


def _groups(session: Session) -> list[FailureGroup]:
    """Parked jobs, and queued ones whose last try failed, by model and reason."""
    latest = func.max(func.coalesce(Job.finished_at, Job.created_at))
    query: Any = (
        select(Method.name, Job.state, Job.reason, func.count(), latest)  # type: ignore[call-overload]
        .join(Method, col(Method.id) == col(Job.method_id))
        .where(col(Job.state).in_([JobState.PARKED, JobState.QUEUED]), Job.reason != "")
        .group_by(col(Method.name), col(Job.state), col(Job.reason))
        .order_by(latest.desc())
        .limit(GROUPS)
    )
    return [
        FailureGroup(method, state, reason, jobs, _time(at))
        for method, state, reason, jobs, at in session.exec(query).all()
    ]


def _time(value: Any) -> datetime | None:
    """An aggregate's time; SQLite gives text back."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value if isinstance(value, datetime) else None


def _jobs(session: Session) -> list[JobLine]:
    query: Any = (
        select(Job, Method.name, Dataset.name, Prompt.key)
        .join(Method, col(Method.id) == col(Job.method_id))
        .join(Prompt, col(Prompt.id) == col(Job.prompt_id))
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .where(Job.state == JobState.PARKED)
        .order_by(col(Job.id).desc())
        .limit(SHOWN)
    )
    return [
        JobLine(
            id=job.id,
            study_id=job.study_id,
            method=method,
            prompt_id=job.prompt_id,
            prompt=f"{dataset}/{key}",
            attempts=job.attempts,
            reason=job.reason,
            finished_at=job.finished_at,
        )
        for job, method, dataset, key in session.exec(query).all()
    ]


def _studies(session: Session) -> list[Failure]:
    """Failed studies, and those that paused by themselves (a cap, an endpoint)."""
    query = (
        select(Study)
        .where(col(Study.state).in_([StudyState.FAILED, StudyState.PAUSED]))
        .order_by(col(Study.id).desc())
        .limit(SHOWN)
    )
    return [
        Failure(f"study {s.id} {s.state}", s.reason, s.finished_at or s.created_at, f"/studies/{s.id}")
        for s in session.exec(query).all()
    ]


def _events(session: Session) -> list[Failure]:
    query = select(Event).where(Event.error != "").order_by(col(Event.id).desc()).limit(SHOWN)
    return [Failure(f"event {e.id} {e.kind}", e.error, e.created_at, "") for e in session.exec(query).all()]


def _versions(session: Session) -> list[Failure]:
    query: Any = (
        select(EstimatorVersion, Benchmark.name)
        .join(Benchmark, col(Benchmark.id) == col(EstimatorVersion.benchmark_id))
        .where(EstimatorVersion.state == VersionState.FAILED)
        .order_by(col(EstimatorVersion.id).desc())
        .limit(SHOWN)
    )
    return [
        Failure(f"{v.estimator} v{v.id} on {benchmark}", v.reason, v.created_at, "")
        for v, benchmark in session.exec(query).all()
    ]


def _items(session: Session) -> list[Failure]:
    query = (
        select(WatchedItem)
        .where(WatchedItem.error != "")
        .order_by(col(WatchedItem.seen_at).desc())
        .limit(SHOWN)
    )
    return [
        Failure(f"{item.watcher}: {item.key}", item.error, item.seen_at, "")
        for item in session.exec(query).all()
    ]


def watcher_lines(session: Session) -> list[WatcherLine]:
    """What each watcher saw."""
    items = session.exec(select(WatchedItem).order_by(col(WatchedItem.seen_at))).all()
    found: dict[str, list[WatchedItem]] = {}
    for item in items:
        found.setdefault(item.watcher, []).append(item)
    return [_watcher(name, seen) for name, seen in sorted(found.items())]


#: Keys under which watchers of a remote source keep what is no item: its state, and its last ETag.
SOURCE, NO_ITEMS = ":source", (":source", ":etag")


def _watcher(name: str, seen: list[WatchedItem]) -> WatcherLine:
    source = next((item for item in seen if item.key == SOURCE), None)
    items = [item for item in seen if item.key not in NO_ITEMS]
    failed = [item for item in items if item.error]
    return WatcherLine(
        name=name,
        down=source.error if source else "",
        up_at=source.seen_at if source else None,
        seen=len(items),
        failed=len(failed),
        latest=items[-1].seen_at if items else None,
        error=failed[-1].error if failed else "",
        error_key=failed[-1].key if failed else "",
    )
