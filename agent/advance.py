"""Advancing a study by one step: read, estimate, stop or choose, reserve, store jobs, send.

Everything a step decides is written in one transaction that takes the step first (an optimistic lock), so two
agents may advance the same study at once: one wins, the other's work is rolled back. A step cut off at any
point leaves either nothing, or a complete step whose unsent jobs the sweeper sends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, func, select

from agent.context import AgentContext
from agent.costs import Purchase, priced_purchases
from agent.objectives import OBJECTIVES
from agent.pairwise import advance_comparison
from agent.situation import Situation, read_situation, unjudged
from agent.text import amount, budget_name, cap_in_words, option_of
from assay.errors import AssayError, BudgetExceededError, StorageError
from assay.logs import log_context
from policies import Selection
from storage import estimates, jobs, ledger, studies, versions
from storage import quantiles as storage_quantiles
from storage.database import Database
from storage.events import emit
from storage.jobs import NewJob
from storage.tables import (
    Benchmark,
    Budget,
    Estimate,
    EstimatorVersion,
    Job,
    LedgerEntry,
    Quantile,
    Study,
    StudyMethod,
    StudyState,
    VersionState,
)

__all__ = ["advance"]

log = logging.getLogger(__name__)


def advance(context: AgentContext, study_id: int) -> bool:
    """Take the study's next step, if it is time for one; True where something changed.

    A trouble that the user can mend (an unknown price, a policy that cannot work) pauses the study with the
    reason, so that one study's trouble never stops the others. So does a step of which no call succeeded:
    going on would only set the rest of the prompts aside.

    Raises:
        StorageError: The database is away or busy; that is no study's fault, and the step is tried again.
    """
    with log_context(study_id=study_id):
        return _advance(context, study_id)


def _advance(context: AgentContext, study_id: int) -> bool:
    try:
        with context.database.read() as session:
            study = studies.find(session, study_id)
            if study.state not in (StudyState.WAITING, StudyState.RUNNING):
                return False
            if jobs.count_open(session, study_id):
                return False
            failed = jobs.failed_step(session, study_id)
            compares = study.objective == "compare"
            ready = None if compares else _ready_version(session, study)
        if failed is not None:
            count, reason = failed
            mend = f"mend it, then: assay study resume {study_id}"
            return _pause(context.database, study_id, f"all {count} calls of a step failed: {reason}; {mend}")
        if compares:
            return advance_comparison(context, study_id)
        if ready is None:
            return _want_version(context, study_id)
        return _step(context, study_id, ready)
    except IntegrityError:
        log.info("study %s: another study asked for the same cells first", study_id)
        return True
    except StorageError:
        raise
    except AssayError as error:
        return _pause(context.database, study_id, str(error))
    except Exception as error:
        log.exception("study %s failed unexpectedly", study_id)
        return _pause(context.database, study_id, f"unexpected {type(error).__name__}: {error}")


def _step(context: AgentContext, study_id: int, version_id: int) -> bool:
    with context.database.read() as session:
        situation = read_situation(session, context, study_id, version_id)
        waiting = unjudged(session, situation)
    objective = OBJECTIVES.get(situation.study.objective)()
    found = _Found(objective.judge(situation), objective.quantiles(situation))
    if waiting is not None:
        return len(waiting) > 0 and _buy(context, situation, found, waiting)
    stop = _limit_reached(situation) or objective.reached(situation, found.rows, found.quantiles)
    chosen = None if stop else situation.policy.select(situation.state, situation.may_buy)
    if chosen is not None and len(chosen) == 0:
        if situation.state.pending.any():
            return False  # another study is buying what is left; its answers will count here too
        stop = "nothing is left that would be worth buying"
    if stop or chosen is None:
        log.info("step %d: done, %s", situation.study.step, stop)
        return _finish(context, situation, found, stop or "")
    log.info("step %d: buying %d scores", situation.study.step, len(chosen))
    return _buy(context, situation, found, chosen)


def _limit_reached(situation: Situation) -> str | None:
    limit = situation.study.max_prompts
    if limit is None or situation.bought < limit:
        return None
    return f"bought {situation.bought} of at most {limit} prompts"


# --- the estimator that the study works with ---------------------------------------------------------------


def _ready_version(session: Session, study: Study) -> int | None:
    """The version to work with; a running study keeps its own as long as the prompts stay the same."""
    benchmark = session.get_one(Benchmark, study.benchmark_id)
    if study.version_id is not None:
        version = session.get_one(EstimatorVersion, study.version_id)
        if version.prompts_revision == benchmark.prompts_revision:
            return version.id
    found = versions.usable(session, benchmark, study.estimator, study.estimator_params)
    return found.id if found else None


def _want_version(context: AgentContext, study_id: int) -> bool:
    """Ask for the estimator once; the study waits until estimator.promoted."""
    with context.database.begin() as session:
        study = studies.find(session, study_id)
        if study.state not in (StudyState.WAITING, StudyState.RUNNING):
            return False  # paused or cancelled since it was read
        benchmark = session.get_one(Benchmark, study.benchmark_id)
        failed = _failure(session, study, benchmark)
        if failed is not None:
            studies.move(session, study_id, StudyState.FAILED, f"estimator '{study.estimator}': {failed}")
            return True
        version = versions.want(
            session, benchmark, study.estimator, study.estimator_params, reason=f"study {study_id}"
        )
        reason = _waits_for(version)
        if study.state != StudyState.WAITING or study.reason != reason:
            studies.move(session, study_id, StudyState.WAITING, reason)
        wanted, version_id = version.state == VersionState.WANTED, version.id
    assert version_id is not None
    if wanted:
        context.send_training(version_id)
    return False


def _failure(session: Session, study: Study, benchmark: Benchmark) -> str | None:
    """Why the fit that the study waits for failed, if it did; a study that is resumed waits for a new one."""
    query = (
        select(EstimatorVersion)
        .where(
            EstimatorVersion.benchmark_id == benchmark.id,
            EstimatorVersion.estimator == study.estimator,
            EstimatorVersion.policy == "",
            EstimatorVersion.state == VersionState.FAILED,
        )
        .order_by(col(EstimatorVersion.id).desc())
    )
    last = session.exec(query).first()
    return last.reason if last is not None and study.reason == _waits_for(last) else None


def _waits_for(version: EstimatorVersion) -> str:
    return f"waits for estimator '{version.estimator}' (version {version.id})"


# --- writing -----------------------------------------------------------------------------------------------


class _Overtaken(Exception):  # noqa: N818
    """Another agent took this step, or others hold what it needs; the transaction is rolled back."""


@dataclass(frozen=True)
class _Found:
    """What a step found out."""

    rows: Sequence[Estimate]
    quantiles: Sequence[Quantile]


def _finish(context: AgentContext, situation: Situation, found: _Found, reason: str) -> bool:
    with context.database.begin() as session:
        if not studies.take_step(session, situation.study_id, situation.study.step):
            return False
        _store_estimates(session, situation, found)
        study = studies.find(session, situation.study_id)
        study.version_id = situation.version.id
        session.add(study)
        if study.state == StudyState.WAITING:
            studies.move(session, situation.study_id, StudyState.RUNNING)
        studies.move(session, situation.study_id, StudyState.DONE, reason)
    return True


def _buy(context: AgentContext, situation: Situation, found: _Found, chosen: Selection) -> bool:
    cells = [(int(row), int(column)) for row, column in zip(chosen.rows, chosen.columns, strict=True)]
    try:
        with context.database.begin() as session:
            purchases = priced_purchases(
                session, situation.columns, situation.methods, situation.specs, cells
            )
            charges = [charge for one in purchases for charge in (one.charge, one.ahead)]
            budgets = ledger.budgets_for(session, _scopes(situation), charges)
            count = ledger.affordable(budgets, purchases)
            if not studies.take_step(session, situation.study_id, situation.study.step):
                raise _Overtaken
            _store_estimates(session, situation, found)
            if count == 0:
                if not _spent_up(budgets, purchases[0]):
                    raise _Overtaken  # others' reservations take the room only for now: wait for them
                _exhausted(session, situation, budgets, purchases[0])
                return True
            study = studies.find(session, situation.study_id)
            study.version_id = situation.version.id
            session.add(study)
            if study.state == StudyState.WAITING:
                studies.move(session, situation.study_id, StudyState.RUNNING)
            bought = purchases[:count]
            ids = _store_jobs(session, situation, chosen, cells[:count], bought)
            ledger.reserve(session, budgets, {i: one.charge for i, one in zip(ids, bought, strict=True)})
    except _Overtaken:
        return False
    except BudgetExceededError:
        return True  # another study reserved meanwhile; the next step sees what is left
    for kind in sorted({one.kind for one in bought}):
        _send(context, [i for i, one in zip(ids, bought, strict=True) if one.kind == kind], kind)
    return True


def _send(context: AgentContext, ids: Sequence[int], kind: str) -> None:
    for start in range(0, len(ids), context.settings.jobs_per_task):
        context.send_jobs(ids[start : start + context.settings.jobs_per_task], kind)


def _store_jobs(
    session: Session,
    situation: Situation,
    chosen: Selection,
    cells: Sequence[tuple[int, int]],
    purchases: Sequence[Purchase],
) -> list[int]:
    columns = situation.columns
    scorer_of = columns.scorer_pks[columns.dataset_index]
    new = [
        NewJob(
            method_id=situation.methods[row].id or 0,
            prompt_id=int(columns.prompt_pks[column]),
            scorer_id=int(scorer_of[column]),
            expected_cost=purchases[i].charge.usd,
            kind=purchases[i].kind,
            gain=_finite(chosen.gain[i]),
            probability=_finite(chosen.probability[i]),
        )
        for i, (row, column) in enumerate(cells)
    ]
    return jobs.add(session, situation.study_id, situation.study.step + 1, new)


def _store_estimates(session: Session, situation: Situation, found: _Found) -> None:
    rows = found.rows
    for quantile in found.quantiles:
        quantile.step = situation.study.step + 1
    storage_quantiles.add(session, found.quantiles)
    spent = _spent(session, situation)
    for row, method in zip(rows, situation.methods, strict=True):
        assert method.id is not None
        row.study_id = situation.study_id
        row.benchmark_id = situation.columns.benchmark_id
        row.method_id = method.id
        row.step = situation.study.step + 1
        row.version_id = situation.version.id
        row.cost = spent.get(method.id, 0)
    estimates.add(session, rows)


def _spent(session: Session, situation: Situation) -> dict[int, int]:
    """Micro-dollars that studies of the benchmark have spent, by method of this one.

    An estimate rests on all scores, whichever study bought them, and one that buys nothing is not free.
    """
    pks = [method.id for method in situation.methods]
    theirs = (
        select(StudyMethod.study_id)
        .join(Study, col(Study.id) == col(StudyMethod.study_id))
        .where(Study.benchmark_id == situation.columns.benchmark_id, col(StudyMethod.method_id).in_(pks))
        .where(Study.objective != "compare")  # which buys preferences, not scores
    )
    query = (
        select(Job.method_id, func.sum(LedgerEntry.settled))
        .join(Job, col(Job.id) == col(LedgerEntry.job_id))
        .join(Budget, col(Budget.id) == col(LedgerEntry.budget_id))
        .where(col(Job.study_id).in_(theirs), col(Job.method_id).in_(pks))
        .where(Budget.scope == "study", Budget.unit == "usd")
        .group_by(col(Job.method_id))
    )
    return {method_id: int(spent) for method_id, spent in session.exec(query).all()}


def _spent_up(budgets: Sequence[Budget], charge: ledger.Costs) -> bool:
    """Whether a cap would leave no room for the charge even if every open reservation were given back."""
    return any(budget.cap - budget.spent < charge.in_budget(budget) for budget in budgets)


def _exhausted(
    session: Session, situation: Situation, budgets: Sequence[Budget], charge: ledger.Costs
) -> None:
    """Pause the study, naming the cap that leaves no room for the next call; with room it goes on."""
    tight = next(b for b in budgets if b.cap - b.spent < charge.in_budget(b))
    reason = (
        f"budget exhausted: {cap_in_words(tight)} leaves"
        f" {amount(tight.cap - tight.spent, tight.unit)}, the next call may cost"
        f" {amount(charge.in_budget(tight), tight.unit)}; {_way_out(situation.study_id, tight)}"
    )
    studies.move(session, situation.study_id, StudyState.PAUSED, reason)
    study = studies.find(session, situation.study_id)
    study.waits_budget_id = tight.id
    session.add(study)
    emit(
        session,
        "budget.exhausted",
        {
            "study_id": situation.study_id,
            "budget_id": tight.id,
            **tight.model_dump(include={"scope", "scope_id", "endpoint", "unit", "period", "cap", "spent"}),
        },
    )


def _way_out(study_id: int, tight: Budget) -> str:
    if tight.scope == "study" and tight.unit == "usd" and tight.period == "total":
        return f"raise it with: assay study resume {study_id} --max-usd AMOUNT"
    until = "" if tight.period == "total" else f"it goes on with the next {tight.period}, or "
    return f"{until}raise it with: assay budget set {budget_name(tight)} --{option_of(tight.unit)} AMOUNT" + (
        "" if tight.period == "total" else f" --per {tight.period}"
    )


def _scopes(situation: Situation) -> list[tuple[str, int]]:
    return [("study", situation.study_id), ("benchmark", situation.columns.benchmark_id), ("overall", 0)]


def _pause(database: Database, study_id: int, reason: str) -> bool:
    with database.begin() as session:
        if studies.find(session, study_id).state not in (StudyState.WAITING, StudyState.RUNNING):
            return False  # finished, cancelled or paused meanwhile
        studies.move(session, study_id, StudyState.PAUSED, reason)
    return True


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
