"""Running a batch of jobs: claim, call, score, store, settle.

A plain function over a database and a list of job ids; the Celery task around it only passes arguments. The
database decides at each step whether this worker still has the right to go on, so the function may be called
any number of times, by anyone, with any ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from assay.errors import AssayError, StorageError
from assay.logs import log_context
from assay.settings import Settings
from assay.statuses import Status
from storage import jobs
from storage.database import Database
from workers import runtime
from workers.backends import BACKENDS, Answer, Backend, CallError, Request
from workers.calls import Calls, Deferred, Try
from workers.judges import is_judge, make_judge
from workers.judging import Asker, check_judgeable, explained, question_of, verdict_details, with_parameters
from workers.outcomes import Outcome, store
from workers.prices import bill_of, price_of
from workers.scorers import SCORERS, Unscorable, usable_text
from workers.work import Work, load_work

__all__ = ["WorkerContext", "run_jobs"]

#: Answers are stored together when so many are there, or so many seconds after the first of them.
GROUP_SIZE = 64
GROUP_SECONDS = 0.2

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0

#: How long answers in hand are kept while the database is away.
STORE_PATIENCE_S = 600.0
STORE_RETRY_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerContext:
    """What a worker process shares among its tasks.

    Attributes:
        database: The database.
        settings: The configuration.
        owner: Name of this process in leases.
        wake: Called after results were stored.
        send: Sends job ids to a queue again: (ids, kind, delay in seconds).
        calls: The way to the backends, with the limits that all workers share.
    """

    database: Database
    settings: Settings
    owner: str
    wake: Callable[[], None]
    send: Callable[[Sequence[int], str, float], None]
    calls: Calls = field(default_factory=Calls)


def run_jobs(context: WorkerContext, job_ids: Sequence[int]) -> int:
    """Run the jobs among `job_ids` that nobody else has; returns how many were claimed."""
    lease = timedelta(seconds=context.settings.lease_s)
    with context.database.begin() as session:
        claimed = jobs.claim(session, job_ids, context.owner, lease)
    if not claimed:
        return 0
    with context.database.read() as session:
        work = load_work(session, claimed)
    runtime.run(_run(context, work))
    return len(claimed)


async def _run(context: WorkerContext, work: Sequence[Work]) -> None:
    outcomes: asyncio.Queue[Outcome | None] = asyncio.Queue()
    backends = _open_backends(work)
    keeper = asyncio.create_task(_keep_leases(context, [item.job_id for item in work]))
    collector = asyncio.create_task(_collect(context, outcomes))
    try:
        async with asyncio.TaskGroup() as group:
            for item in work:
                group.create_task(_one(item, backends[item.spec.name], outcomes, context))
    finally:
        await outcomes.put(None)
        await collector
        keeper.cancel()
        for backend in backends.values():
            if not isinstance(backend, AssayError):
                await backend.close()


def _open_backends(work: Sequence[Work]) -> dict[str, Backend | AssayError]:
    """The backend of each model, or why there is none; one model's trouble is not another's."""
    backends: dict[str, Backend | AssayError] = {}
    for item in work:
        if item.spec.name not in backends:
            try:
                backends[item.spec.name] = BACKENDS.get(item.spec.backend)(item.spec)
            except AssayError as error:
                backends[item.spec.name] = error
    return backends


async def _one(
    item: Work,
    backend: Backend | AssayError,
    outcomes: asyncio.Queue[Outcome | None],
    context: WorkerContext,
) -> None:
    """One job from call to outcome; never raises, so that one job cannot take its batch down."""
    with log_context(study_id=item.study_id, job_id=item.job_id):
        outcome = await _outcome(item, backend, context)
        if outcome.parked or outcome.retry:
            log.info(
                "%s: %s", "set aside" if outcome.parked else "tried again", outcome.parked or outcome.retry
            )
        await outcomes.put(outcome)


async def _outcome(item: Work, backend: Backend | AssayError, context: WorkerContext) -> Outcome:
    try:
        if item.known_score is not None:
            outcome = Outcome(item, score=item.known_score)
        elif isinstance(backend, AssayError):
            outcome = Outcome(item).failed(str(backend), Status.FAILED)
        else:
            outcome = await _call_and_score(item, backend, context)
    except Unscorable as error:
        outcome = Outcome(item).failed(error.reason, error.status)
    except AssayError as error:
        outcome = Outcome(item).failed(str(error), Status.FAILED)
    except Exception as error:
        log.exception("job %s failed unexpectedly", item.job_id)
        outcome = Outcome(item).failed(f"unexpected {type(error).__name__}: {error}", Status.FAILED)
    return outcome


async def _call_and_score(item: Work, backend: Backend, context: WorkerContext) -> Outcome:
    most = context.settings.max_attempts
    tries: list[Try] = []

    async def ask(request: Request) -> Answer:
        return await context.calls.ask(item.spec, backend, request, tries)

    try:
        outcome = await (_judge(item, ask, most) if item.kind == "judge" else _infer(item, ask, most))
    except Deferred as deferred:
        outcome = Outcome(item, retry=deferred.reason, delay_s=deferred.wait_s, refund=True)
    return replace(outcome, tries=(*tries, *outcome.tries))


async def _infer(item: Work, ask: Callable[[Request], Awaitable[Answer]], max_attempts: int) -> Outcome:
    # Before the call: what cannot be charged or scored is not bought.
    price = price_of(item.spec)
    score = _scoring(item)
    if item.known_answer is not None:
        return _scored(Outcome(item, answer=item.known_answer), score, item.known_answer)
    started = time.monotonic()
    try:
        answer = await ask(_request(item))
    except CallError as error:
        return _failed(Outcome(item), error, max_attempts)
    bill = bill_of(with_parameters(item.spec, item.parameters), price, item.text, answer)
    latency_ms = (time.monotonic() - started) * 1000
    return _scored(Outcome(item, answer=answer, bill=bill, latency_ms=latency_ms), score, answer)


def _failed(outcome: Outcome, error: CallError, max_attempts: int) -> Outcome:
    """The outcome of a call that brought no answer: tried again, or set aside with what was paid so far."""
    attempt = outcome.work.attempt
    tries = (*outcome.tries, Try.of(error))
    if error.retry and attempt < max_attempts:
        delay_s = _backoff(attempt, error.retry_after)
        return replace(
            outcome, retry=error.reason, delay_s=delay_s, bill=None, status=error.status, tries=tries
        )
    return replace(outcome, parked=error.reason, status=error.status, tries=tries)


async def _judge(item: Work, ask: Callable[[Request], Awaitable[Answer]], max_attempts: int) -> Outcome:
    """A judge's job; replies that came before a failure are kept, so that the next try need not buy them."""
    price = price_of(item.spec)
    judge, asker = make_judge(item.scorer, item.scorer_params), Asker(item, ask)
    try:
        verdict = await judge.judge(question_of(item), asker)
    except Unscorable as error:
        return Outcome(item).failed(error.reason, error.status)
    except Deferred as deferred:
        retry = Outcome(item, retry=deferred.reason, delay_s=deferred.wait_s, refund=True)
        return replace(retry, details=asker.details)
    except CallError as error:
        paid = Outcome(item, bill=asker.bill(price), details=asker.details)
        return _failed(paid, error, max_attempts)
    verdict = replace(verdict, usage=asker.usage)
    found = Outcome(
        item,
        bill=asker.bill(price),
        verdict=verdict,
        details={**asker.details, "verdict": verdict_details(verdict)},
    )
    if verdict.value is None:
        return found.failed(explained(verdict), verdict.status)
    return found.scored(verdict.value)


def _scoring(item: Work) -> Callable[[Answer], float | None]:
    """How the job's answer becomes a score; None where a judge will say in a job of its own."""
    if item.other_method_id:
        return _left_to_judge  # an answer for a comparison, whoever judges it
    if not is_judge(item.scorer):
        scorer = SCORERS.get(item.scorer)(**item.scorer_params)
        return lambda answer: scorer.score(answer, item.fields)
    check_judgeable(item)
    return _left_to_judge


def _left_to_judge(answer: Answer) -> None:
    usable_text(answer)


def _scored(bought: Outcome, scoring: Callable[[Answer], float | None], answer: Answer) -> Outcome:
    """The outcome with its score, or why there is none; the charge stays, whatever the scorer does."""
    name = bought.work.scorer
    try:
        score = scoring(answer)
    except Unscorable as error:
        return bought.failed(error.reason, error.status)
    except Exception as error:
        log.exception("scorer '%s' failed on job %s", name, bought.work.job_id)
        return bought.failed(f"scorer '{name}' failed: {type(error).__name__}: {error}", Status.UNSCORABLE)
    if score is None:
        return replace(bought, answered=True)
    if not 0.0 <= score <= 1.0:  # also true of NaN
        return bought.failed(f"scorer '{name}' gave {score:g}, which is outside [0, 1]", Status.UNSCORABLE)
    return bought.scored(score)


def _request(item: Work) -> Request:
    return Request(
        key=item.prompt_key,
        text=item.text,
        parameters=item.parameters,
        attempt=item.attempt,
        idempotency_key=f"assay-job-{item.job_id}",
        choices=item.choices,
    )


def _backoff(attempt: int, retry_after: float | None) -> float:
    """Seconds to wait: what the endpoint asked for, else exponential with full jitter."""
    if retry_after is not None:
        return retry_after
    ceiling = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** (attempt - 1))
    return ceiling * random.uniform(0.5, 1.0)  # noqa: S311  (jitter, not a secret)


async def _collect(context: WorkerContext, outcomes: asyncio.Queue[Outcome | None]) -> None:
    """Store outcomes in groups, so that neither a transaction per answer nor a long wait is paid."""
    done = False
    while not done:
        first = await outcomes.get()
        if first is None:
            return
        group, done = await _gather(first, outcomes)
        await asyncio.to_thread(_store_and_send, context, group)


async def _gather(first: Outcome, outcomes: asyncio.Queue[Outcome | None]) -> tuple[list[Outcome], bool]:
    group, until = [first], time.monotonic() + GROUP_SECONDS
    while len(group) < GROUP_SIZE and (left := until - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            outcome = await asyncio.wait_for(outcomes.get(), left)
            if outcome is None:
                return group, True
            group.append(outcome)
    return group, False


def _store_and_send(context: WorkerContext, group: Sequence[Outcome]) -> None:
    retries = _store_persistently(context, group)
    for job_id, kind, delay_s in retries:
        context.send([job_id], kind, delay_s)
    context.wake()


def _store_persistently(context: WorkerContext, group: Sequence[Outcome]) -> list[tuple[int, str, float]]:
    """Store answers that are paid for, also where the database is away for a while."""
    until = time.monotonic() + STORE_PATIENCE_S
    while True:
        try:
            return store(context.database, group, context.owner)
        except StorageError as error:
            if time.monotonic() > until:
                raise
            log.warning("results not stored yet: %s", error)
            time.sleep(STORE_RETRY_S)


async def _keep_leases(context: WorkerContext, job_ids: Sequence[int]) -> None:
    """Renew the batch's leases while it runs, so that a lease may be short and a dead worker soon noticed."""
    lease = timedelta(seconds=context.settings.lease_s)
    while True:
        await asyncio.sleep(context.settings.lease_s / 3)
        try:
            await asyncio.to_thread(_renew, context, job_ids, lease)
        except AssayError as error:
            log.warning("leases not renewed: %s", error)


def _renew(context: WorkerContext, job_ids: Sequence[int], lease: timedelta) -> None:
    with context.database.begin() as session:
        jobs.renew(session, job_ids, context.owner, lease)
