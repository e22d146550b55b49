"""Jobs: stored before they are sent, claimed by lease, finished once.

The broker may lose, repeat or reorder messages: a message only names job ids, and every transition here is a
conditional UPDATE that says whether it won.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, func, insert, or_, update
from sqlalchemy.engine import CursorResult
from sqlmodel import Session, col, select

from assay.statuses import Status
from storage.tables import Attempt, Job, JobState, LedgerEntry, LedgerState, utc_now

__all__ = [
    "OPEN_STATES",
    "FailedTry",
    "NewJob",
    "add",
    "answered_cells",
    "add_attempts",
    "attempts_of",
    "claim",
    "count_finished",
    "count_open",
    "expired",
    "failed_step",
    "finish",
    "free_unpaid",
    "keep_details",
    "maybe_billed",
    "open_cells",
    "park",
    "parked_cells",
    "renew",
    "replace_parked",
    "requeue",
    "store_bills",
    "undispatched",
]

#: So many failed calls in a step, and no other, stop the study.
LEAST_FAILED = 3

#: Ends of jobs that say nothing against their endpoint: it did answer, or a worker died.
ANSWERED = (Status.LOST, Status.REFUSED, Status.EMPTY, Status.TRUNCATED, Status.MALFORMED, Status.UNSCORABLE)

OPEN_STATES = (JobState.QUEUED, JobState.LEASED)


@dataclass(frozen=True)
class NewJob:
    """A cell to buy, and why.

    Attributes:
        method_id: Row.
        prompt_id: Column.
        scorer_id: How it will be scored.
        expected_cost: Micro-dollars, worst case.
        gain: What the policy expected of it, None where it says nothing.
        probability: Probability with which the policy drew it, None where it was not drawn.
        kind: "inference" or "judge"; also the queue.
        other_method_id: In a comparison the method B (`method_id` is A), else 0.
    """

    method_id: int
    prompt_id: int
    scorer_id: int
    expected_cost: int = 0
    gain: float | None = None
    probability: float | None = None
    kind: str = "inference"
    other_method_id: int = 0


def open_cells(session: Session, method_ids: Iterable[int]) -> set[tuple[int, int, int]]:
    """(method, prompt, scorer) of every open job of these methods, whichever study asked."""
    query = select(Job.method_id, Job.prompt_id, Job.scorer_id).where(
        col(Job.method_id).in_(list(method_ids)),
        col(Job.state).in_(OPEN_STATES),
        Job.other_method_id == 0,
    )
    return {(m, p, s) for m, p, s in session.exec(query).all()}


def parked_cells(session: Session, method_ids: Iterable[int]) -> set[tuple[int, int, int]]:
    """(method, prompt, scorer) of every cell that was set aside: not to be bought again by itself."""
    query = select(Job.method_id, Job.prompt_id, Job.scorer_id).where(
        col(Job.method_id).in_(list(method_ids)),
        Job.state == JobState.PARKED,
        Job.other_method_id == 0,
    )
    return {(m, p, s) for m, p, s in session.exec(query).all()}


def failed_step(session: Session, study_id: int) -> tuple[int, str] | None:
    """Where no call of the study's last step brought an answer: how many there were, and the reason of one.

    One or two such calls among others say something of their prompts; a whole step, or the very first, says
    something of the endpoint.
    """
    failed = (col(Job.state) == JobState.PARKED) & col(Job.status).not_in(ANSWERED)
    query = (
        select(Job.step, func.count(), func.sum(case((failed, 1), else_=0)), func.min(Job.reason))
        .where(Job.study_id == study_id, Job.state != JobState.CANCELLED)
        .group_by(col(Job.step))
        .order_by(col(Job.step).desc())
    )
    steps = session.exec(query).all()
    if not steps or steps[0][1] != steps[0][2]:
        return None
    _, count, _, reason = steps[0]
    return (int(count), str(reason)) if count >= LEAST_FAILED or len(steps) == 1 else None


def free_unpaid(session: Session, study_id: int) -> int:
    """Give up the study's parked jobs that cost nothing, so that their cells can be chosen again.

    Cells whose call was paid for (refused, empty or cut-off answers) stay set aside: asking again would pay
    again.
    """
    paid = select(LedgerEntry.job_id).where(LedgerEntry.state == LedgerState.SETTLED)
    statement = (
        update(Job)
        .where(col(Job.study_id) == study_id, col(Job.state) == JobState.PARKED)
        .where(col(Job.id).not_in(paid))
        .values(state=JobState.CANCELLED)
    )
    return _update(session, statement).rowcount


def add(session: Session, study_id: int, step: int, jobs: Sequence[NewJob]) -> list[int]:
    """Store queued jobs; returns their ids in the same order.

    Raises:
        IntegrityError: A cell has an open job already (another study was faster); roll back and choose again.
    """
    now = utc_now()
    rows = [
        {
            "study_id": study_id,
            "step": step,
            "state": JobState.QUEUED,
            "status": "",
            "reason": "",
            "attempts": 0,
            "details": {},
            "bill": {},
            "created_at": now,
            "dispatched_at": now,
            **vars(job),
        }
        for job in jobs
    ]
    statement = insert(Job).returning(col(Job.id), sort_by_parameter_order=True)
    return _ids(session.connection().execute(statement, rows))


def claim(session: Session, job_ids: Sequence[int], owner: str, lease: timedelta) -> list[Job]:
    """Lease the queued jobs among `job_ids` to `owner`; jobs that somebody else has are left out."""
    now = utc_now()
    statement = (
        update(Job)
        .where(col(Job.id).in_(job_ids), col(Job.state) == JobState.QUEUED)
        .where(or_(col(Job.not_before).is_(None), col(Job.not_before) <= now))
        .values(state=JobState.LEASED, lease_owner=owner, lease_until=now + lease, attempts=Job.attempts + 1)
        .returning(col(Job.id))
    )
    won = _ids(session.connection().execute(statement))
    query = select(Job).where(col(Job.id).in_(won)).order_by(col(Job.id))
    return list(session.exec(query.execution_options(populate_existing=True)).all())


def keep_details(session: Session, details: Mapping[int, dict[str, Any]]) -> None:
    """Write down what became of some jobs beyond their state (job id -> details)."""
    for job_id, found in details.items():
        _update(session, update(Job).where(col(Job.id) == job_id).values(details=found))


def answered_cells(session: Session, study_id: int) -> list[Job]:
    """The study's jobs that brought an answer to be judged, in the order in which they were chosen."""
    query = (
        select(Job)
        .where(Job.study_id == study_id, Job.state == JobState.DONE, Job.status == Status.ANSWERED)
        .order_by(col(Job.id))
    )
    return list(session.exec(query).all())


def renew(session: Session, job_ids: Sequence[int], owner: str, lease: timedelta) -> int:
    """Extend the leases that `owner` still holds; returns how many."""
    return _update(
        session,
        update(Job)
        .where(col(Job.id).in_(job_ids), col(Job.state) == JobState.LEASED, col(Job.lease_owner) == owner)
        .values(lease_until=utc_now() + lease),
    ).rowcount


def finish(session: Session, job_ids: Sequence[int], status: Status = Status.SCORED) -> set[int]:
    """Mark open jobs done; returns those that were open until now.

    The lease's owner does not matter: an answer in hand is paid for, so the first to bring it is taken, also
    where the lease ran out meanwhile. The second finds the job done and must store nothing.
    """
    statement = (
        update(Job)
        .where(col(Job.id).in_(job_ids), col(Job.state).in_(OPEN_STATES))
        .values(
            state=JobState.DONE,
            status=status,
            reason="",
            finished_at=utc_now(),
            lease_owner=None,
            lease_until=None,
        )
        .returning(col(Job.id))
    )
    return set(_ids(session.connection().execute(statement)))


def park(
    session: Session,
    job_id: int,
    reason: str,
    *,
    status: str = Status.FAILED,
    owner: str | None = None,
    expired: bool = False,
) -> bool:
    """Set an open job aside with its reason; it holds no score and is not tried again by itself.

    `status`, `owner` and `expired` are as in `requeue`.
    """
    statement = (
        update(Job)
        .where(col(Job.id) == job_id, col(Job.state).in_(OPEN_STATES), *_held(owner, expired))
        .values(
            state=JobState.PARKED,
            status=status,
            reason=reason[:2000],
            finished_at=utc_now(),
            lease_owner=None,
        )
    )
    return bool(_update(session, statement).rowcount)


def replace_parked(session: Session, job: Job) -> int:
    """Give up a job that was set aside, for a new one of the same cell that is due at once; its id.

    Raises:
        IntegrityError: The cell has an open job already.
    """
    _update(session, update(Job).where(col(Job.id) == job.id).values(state=JobState.CANCELLED))
    kept = {"study_id", "method_id", "prompt_id", "scorer_id", "other_method_id", "kind", "step"}
    new = Job(**job.model_dump(include=kept | {"gain", "probability", "expected_cost"}))
    new.dispatched_at = new.created_at - timedelta(days=1)  # so that the sweeper sends it
    session.add(new)
    session.flush()
    return int(new.id or 0)


def requeue(
    session: Session,
    job_id: int,
    reason: str,
    delay: timedelta = timedelta(),
    *,
    status: str = "",
    owner: str | None = None,
    expired: bool = False,
    refund: bool = False,
) -> bool:
    """Put a leased job back into the queue, to be tried again after `delay`.

    Args:
        session: A writing session.
        job_id: The job.
        reason: Why, in one line.
        delay: Time to wait before the next try.
        status: What kind of failure it was.
        owner: Only if this worker holds the lease: one that lost it must not take the job from the next.
        expired: Only if the lease is over now: it may have been renewed since it was looked at.
        refund: Whether the try counts as none.
    """
    now = utc_now()
    statement = (
        update(Job)
        .where(col(Job.id) == job_id, col(Job.state) == JobState.LEASED, *_held(owner, expired))
        .values(
            state=JobState.QUEUED,
            status=status,
            reason=reason[:2000],
            attempts=Job.attempts - int(refund),
            lease_owner=None,
            lease_until=None,
            not_before=now + delay,
            dispatched_at=now + delay,
        )
    )
    return bool(_update(session, statement).rowcount)


@dataclass(frozen=True)
class FailedTry:
    """A try that brought no score: what `add_attempts` stores of it.

    Attributes:
        job_id: The job.
        number: Which try it was, from 1.
        status: A word of `assay.statuses`.
        reason: Why, in one line.
        unsure: Whether it may have been billed although its answer was lost.
    """

    job_id: int
    number: int
    status: str
    reason: str
    unsure: bool = False


def add_attempts(session: Session, tries: Sequence[FailedTry], worker: str) -> None:
    """Keep tries that failed, with their reasons."""
    if not tries:
        return
    now = utc_now()
    rows = [{**vars(one), "reason": one.reason[:2000], "worker": worker, "at": now} for one in tries]
    session.connection().execute(insert(Attempt), rows)


def attempts_of(session: Session, job_id: int) -> Sequence[Attempt]:
    """The failed tries of a job, oldest first."""
    return session.exec(select(Attempt).where(Attempt.job_id == job_id).order_by(col(Attempt.id))).all()


def maybe_billed(session: Session, job_ids: Iterable[int]) -> set[int]:
    """Those of the jobs one of whose tries may have been billed although its answer was lost."""
    query = select(Attempt.job_id).where(col(Attempt.job_id).in_(list(job_ids)), col(Attempt.unsure))
    return set(session.exec(query).all())


def store_bills(session: Session, bills: Mapping[int, dict[str, Any]]) -> None:
    """Store what each job's answer cost, and by which price."""
    rows = [{"job": job_id, "found": details} for job_id, details in bills.items()]
    table = Job.__table__  # type: ignore[attr-defined]  # by the table: the ORM's own bulk update is slower
    statement = update(table).where(table.c.id == bindparam("job")).values(bill=bindparam("found"))
    session.connection().execute(statement, rows)


def expired(session: Session, limit: int = 500) -> Sequence[Job]:
    """Leased jobs whose lease has run out: their worker died or lost its connection."""
    query = select(Job).where(Job.state == JobState.LEASED, col(Job.lease_until) < utc_now()).limit(limit)
    return session.exec(query).all()


def undispatched(
    session: Session, older_than: timedelta, limit: int = 2000, *, mark: bool = True
) -> list[tuple[int, str]]:
    """(id, kind) of queued jobs that nobody has claimed for so long that their message must be lost.

    They are marked as sent again now, unless `mark` is false (a reading session may only look).
    """
    now = utc_now()
    query = (
        select(Job.id, Job.kind)
        .where(Job.state == JobState.QUEUED, col(Job.dispatched_at) < now - older_than)
        .limit(limit)
    )
    found = [(int(job_id or 0), kind) for job_id, kind in session.exec(query).all()]
    if found and mark:
        _update(session, update(Job).where(col(Job.id).in_([i for i, _ in found])).values(dispatched_at=now))
    return found


def count_open(session: Session, study_id: int) -> int:
    """How many jobs of a study are queued or leased."""
    query = select(func.count()).where(Job.study_id == study_id, col(Job.state).in_(OPEN_STATES))
    return int(session.exec(query).one())


def count_finished(session: Session, study_id: int) -> int:
    """How many jobs of a study are done or set aside."""
    states = (JobState.DONE, JobState.PARKED)
    query = select(func.count()).where(Job.study_id == study_id, col(Job.state).in_(states))
    return int(session.exec(query).one())


def _held(owner: str | None, expired: bool) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if owner is not None:
        conditions.append(col(Job.lease_owner) == owner)
    if expired:
        conditions.append(col(Job.lease_until) < utc_now())
    return conditions


def _update(session: Session, statement: object) -> CursorResult[tuple[()]]:
    result: CursorResult[tuple[()]] = session.connection().execute(statement)  # type: ignore[call-overload]
    return result


def _ids(rows: Iterable[Any]) -> list[int]:
    return [int(row[0]) for row in rows]
