"""What became of a call, and how it is stored: score, output, money and news in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session

from assay.statuses import Status
from storage import jobs, ledger
from storage.database import Database
from storage.events import emit
from storage.preferences import PreferenceRow, add_preferences
from storage.scores import ScoreRow, add_scores, bump_revision
from storage.tables import Output, utc_now
from workers.backends import Answer
from workers.calls import Try
from workers.judges import Verdict
from workers.judging import verdict_details
from workers.prices import Bill
from workers.work import Work

__all__ = ["Outcome", "store"]


@dataclass(frozen=True)
class Outcome:
    """What became of one job: a score, a reason to set it aside, or a reason to try again.

    Attributes:
        work: The job.
        score: The score, where there is one.
        parked: Why the job is set aside, where it is.
        retry: Why it is tried again, where it is.
        delay_s: Seconds to wait before that.
        answer: The answer, where there is one.
        bill: What it cost, where it was bought now.
        latency_ms: How long the call took.
        answered: The answer is all that was wanted: a judge's job will score it.
        verdict: What the judge said, in a judge's job.
        details: What the job keeps for its next try or for the record.
        status: What kind of end it was.
        refund: Whether the try counts as none, since the endpoint was paused.
        tries: Tries that brought no answer, in their order.
    """

    work: Work
    score: float | None = None
    parked: str | None = None
    retry: str | None = None
    delay_s: float = 0.0
    answer: Answer | None = None
    bill: Bill | None = None
    latency_ms: float = 0.0
    status: Status | None = None
    refund: bool = False
    tries: tuple[Try, ...] = ()
    answered: bool = False
    verdict: Verdict | None = None
    details: dict[str, Any] | None = None

    @property
    def done(self) -> bool:
        """Whether the job brought what it was for."""
        return self.answered or self.score is not None

    def scored(self, score: float) -> Outcome:
        """The same with its score."""
        return replace(self, score=score, status=Status.SCORED)

    def failed(self, reason: str, status: Status) -> Outcome:
        """The same, set aside for good: without a score, paid for or not."""
        return replace(self, parked=reason, status=status, tries=(*self.tries, Try(status, reason)))


def store(
    database: Database, outcomes: Sequence[Outcome], owner: str | None = None
) -> list[tuple[int, str, float]]:
    """Store a group of outcomes at once.

    Args:
        database: The database.
        outcomes: What became of some jobs.
        owner: Who ran them. An answer counts whoever brings it first; a failure counts only from the worker
            that still holds the lease, so that one that was given up cannot take the job from its successor.

    Returns:
        (job id, kind, delay) of the jobs to be sent again.
    """
    with database.begin() as session:
        _store_tries(session, outcomes, owner)
        again = _requeue(session, [outcome for outcome in outcomes if outcome.retry is not None], owner)
        parked = _park(session, [outcome for outcome in outcomes if outcome.parked is not None], owner)
        done = _finish(session, [outcome for outcome in outcomes if outcome.done])
        _announce(session, done, parked)
    return again


def _finish(session: Session, outcomes: Sequence[Outcome]) -> list[Outcome]:
    won = jobs.finish(session, [outcome.work.job_id for outcome in outcomes if not outcome.answered])
    answered = [outcome.work.job_id for outcome in outcomes if outcome.answered]
    won |= jobs.finish(session, answered, Status.ANSWERED) if answered else set()
    done = [outcome for outcome in outcomes if outcome.work.job_id in won]
    _store_outputs(session, done)
    single = [outcome for outcome in done if not outcome.work.other_method_id]
    add_scores(session, [_score_row(one).astuple() for one in single if one.score is not None])
    pairs = [one for one in done if one.work.other_method_id and one.score is not None]
    add_preferences(session, [_preference_row(one) for one in pairs])
    _settle(session, done)
    _keep_details(session, done)
    return done


def _park(session: Session, outcomes: Sequence[Outcome], owner: str | None) -> list[Outcome]:
    parked = [
        outcome
        for outcome in outcomes
        if jobs.park(
            session,
            outcome.work.job_id,
            outcome.parked or "",
            status=outcome.status or Status.FAILED,
            owner=owner if outcome.bill is None else None,
        )
    ]
    # The answer stays out of the outputs: an answer that cannot be scored must not be reused as if it could.
    _settle(session, parked)
    _keep_details(session, parked)
    return parked


def _requeue(
    session: Session, outcomes: Sequence[Outcome], owner: str | None
) -> list[tuple[int, str, float]]:
    again = []
    for outcome in outcomes:
        delay = timedelta(seconds=outcome.delay_s)
        if jobs.requeue(
            session,
            outcome.work.job_id,
            outcome.retry or "",
            delay,
            status=outcome.status or "",
            owner=owner,
            refund=outcome.refund,
        ):
            again.append((outcome.work.job_id, outcome.work.kind, outcome.delay_s))
            _keep_details(session, [outcome])
    return again


def _keep_details(session: Session, outcomes: Sequence[Outcome]) -> None:
    kept = {one.work.job_id: one.details for one in outcomes if one.details is not None}
    jobs.keep_details(session, kept)


def _settle(session: Session, outcomes: Iterable[Outcome]) -> None:
    """Calls that were made are settled at their cost, the others' reservations are given back.

    A job without an answer one of whose calls may have been billed is settled at its worst case.
    """
    paid = {outcome.work.job_id: outcome.bill for outcome in outcomes if outcome.bill is not None}
    unpaid = {outcome.work.job_id for outcome in outcomes if outcome.bill is None}
    if paid:
        known = {job_id: bill.charge for job_id, bill in paid.items() if bill.charge is not None}
        ledger.settle(session, known)
        ledger.settle_at_worst(session, paid.keys() - known.keys())
        jobs.store_bills(session, {job_id: bill.details for job_id, bill in paid.items()})
    if unpaid:
        unsure = jobs.maybe_billed(session, unpaid)
        ledger.settle_at_worst(session, unsure)
        ledger.release(session, unpaid - unsure)


def _store_tries(session: Session, outcomes: Sequence[Outcome], owner: str | None) -> None:
    rows = [
        jobs.FailedTry(outcome.work.job_id, outcome.work.attempt, one.status, one.reason, one.unsure)
        for outcome in outcomes
        for one in outcome.tries
    ]
    jobs.add_attempts(session, rows, owner or "")


def _store_outputs(session: Session, outcomes: Sequence[Outcome]) -> None:
    rows = [
        {
            "method_id": outcome.work.method_id,
            "prompt_id": outcome.work.prompt_id,
            "text": outcome.answer.text,
            "finish_reason": outcome.answer.finish_reason,
            "input_tokens": outcome.answer.input_tokens,
            "output_tokens": outcome.answer.output_tokens,
            "latency_ms": outcome.latency_ms,
            "details": _beside_text(outcome.answer),
            "created_at": utc_now(),
        }
        for outcome in outcomes
        if outcome.answer is not None
    ]
    if not rows:
        return
    connection = session.connection()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(dialect.insert(Output).on_conflict_do_nothing(), rows)


def _beside_text(answer: Answer) -> dict[str, Any]:
    found = {"score": answer.score, "choice_logprobs": answer.choice_logprobs}
    return {name: value for name, value in found.items() if value is not None}


def _score_row(outcome: Outcome) -> ScoreRow:
    assert outcome.score is not None
    work = outcome.work
    return ScoreRow(
        dataset_id=work.dataset_id,
        scorer_id=work.scorer_id,
        method_id=work.method_id,
        prompt_id=work.prompt_id,
        value=outcome.score,
        job_id=work.job_id,
    )


def _preference_row(outcome: Outcome) -> PreferenceRow:
    assert outcome.score is not None
    work = outcome.work
    return PreferenceRow(
        method_a_id=work.method_id,
        method_b_id=work.other_method_id,
        prompt_id=work.prompt_id,
        scorer_id=work.scorer_id,
        value=outcome.score,
        details=verdict_details(outcome.verdict) if outcome.verdict else {},
    )


def _announce(session: Session, done: Sequence[Outcome], parked: Sequence[Outcome]) -> None:
    """One jobs.finished per study; the revisions last, since every worker of a benchmark waits there."""
    finished = Counter(outcome.work.study_id for outcome in done)
    aside = Counter(outcome.work.study_id for outcome in parked)
    for study_id in sorted(finished | aside):
        emit(
            session,
            "jobs.finished",
            {"study_id": study_id, "done": finished[study_id], "parked": aside[study_id]},
        )
    for benchmark_id in sorted({outcome.work.benchmark_id for outcome in done}):
        bump_revision(session, benchmark_id)
