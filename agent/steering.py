"""Ordering and steering studies: the same for the command line, the REST API and the page."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from agent.objectives import OBJECTIVES
from agent.pairwise import CompareObjective, judge_scorer
from agent.rules import default_choice, distribution_choice
from agent.templates import template_methods
from assay.errors import UsageError
from assay.settings import Settings
from estimators import ESTIMATORS
from policies import POLICIES
from storage import catalog, jobs, ledger, studies
from storage.ledger import Charge
from storage.studies import StudyRequest
from storage.tables import Benchmark, Job, JobState, Method, Model, Study, StudyState
from workers.limits import endpoint_of
from workers.work import spec_of

__all__ = ["MOST_USD", "StudyOrder", "cancel", "micro_dollars", "order", "pause", "resume", "retry_jobs"]

#: More than anybody means, and small enough for the ledger's integers.
MOST_USD = 1e9


@dataclass(frozen=True)
class StudyOrder:
    """What somebody wants to know; what is None is as configured.

    Attributes:
        benchmark: Benchmark to evaluate on.
        methods: Names of methods (or models); the objective "estimate" makes a study of each.
        objective: A name of `OBJECTIVES`.
        policy: Acquisition policy.
        estimator: Estimator of what is not bought.
        max_usd: Hard cap, US dollars.
        max_prompts: Stop after so many scores.
        until_width: Stop once the interval is so narrow.
        until_confidence: Stop once one method is so probably the best.
        batch_size: Scores per step.
        seed: Seed of everything random.
        templates: Objective "distribution": names or patterns (`*`) of templates; the model's study has a row
            for each, and those added while it runs join it.
        quantiles: Objective "distribution": quantiles of the scores, in (0, 1]; default 5 to 95 %.
        judge: Objective compare: the judge's model, `INSTRUMENT:MODEL`, or `people`.
    """

    benchmark: str
    methods: Sequence[str]
    objective: str = "estimate"
    policy: str | None = None
    estimator: str | None = None
    max_usd: float | None = None
    max_prompts: int | None = None
    until_width: float | None = None
    until_confidence: float | None = None
    batch_size: int | None = None
    seed: int | None = None
    templates: Sequence[str] = ()
    quantiles: Sequence[float] = ()
    judge: str | None = None


def order(session: Session, settings: Settings, wanted: StudyOrder) -> list[int]:
    """Create the studies; returns their numbers.

    Raises:
        NotFoundError: There is no such benchmark or method.
        UsageError: Objective, policy, estimator and number of methods do not fit together.
    """
    if wanted.objective == "compare":
        return [_order_comparison(session, settings, wanted)]
    aim = OBJECTIVES.get(wanted.objective)()
    benchmark = catalog.find_benchmark(session, wanted.benchmark)
    defaults = default_choice(session, settings, benchmark)
    if wanted.objective == "distribution":
        defaults = distribution_choice(session, benchmark, wanted.estimator)
    policy = wanted.policy or aim.default_policy or defaults[0]
    estimator = wanted.estimator or defaults[1]
    ESTIMATORS.get(estimator)
    ids = []
    for methods in _groups(session, benchmark, wanted):
        aim.check(POLICIES.get(policy), len(methods))
        study = studies.create(
            session,
            StudyRequest(
                benchmark_id=benchmark.id or 0,
                method_ids=[method.id or 0 for method in methods],
                policy=policy,
                policy_params=_policy_params(policy, wanted),
                estimator=estimator,
                objective=wanted.objective,
                seed=settings.seed if wanted.seed is None else wanted.seed,
                batch_size=wanted.batch_size or settings.batch_size,
                level=settings.level,
                max_prompts=wanted.max_prompts or settings.max_prompts,
                until_width=wanted.until_width,
                until_confidence=wanted.until_confidence,
                quantiles=wanted.quantiles,
                templates=wanted.templates,
                caps={"usd": micro_dollars(settings.max_usd if wanted.max_usd is None else wanted.max_usd)},
            ),
        )
        assert study is not None
        ids.append(int(study.id or 0))
    return ids


def _order_comparison(session: Session, settings: Settings, wanted: StudyOrder) -> int:
    """One study of all methods, judged by pairs; the estimator of the row is not asked."""
    benchmark = catalog.find_benchmark(session, wanted.benchmark)
    names = list(dict.fromkeys(wanted.methods))
    policy = CompareObjective().policy(wanted.policy, len(names))
    study = studies.create(
        session,
        StudyRequest(
            benchmark_id=benchmark.id or 0,
            method_ids=[catalog.find_method(session, name).id or 0 for name in names],
            policy=policy,
            estimator="aggregate",
            objective=wanted.objective,
            seed=settings.seed if wanted.seed is None else wanted.seed,
            batch_size=wanted.batch_size or settings.batch_size,
            level=settings.level,
            max_prompts=wanted.max_prompts or settings.max_prompts,
            until_confidence=wanted.until_confidence,
            caps={"usd": micro_dollars(settings.max_usd if wanted.max_usd is None else wanted.max_usd)},
            scorer_id=judge_scorer(session, wanted.judge).id,
        ),
    )
    assert study is not None
    return int(study.id or 0)


def _groups(session: Session, benchmark: Benchmark, wanted: StudyOrder) -> list[list[Method]]:
    """The rows of each study."""
    names = list(dict.fromkeys(wanted.methods))
    if not names:
        raise UsageError("a study needs a method", "name one or more models")
    if wanted.objective == "distribution" and wanted.templates:
        models = [catalog.find_model(session, name) for name in names]
        return [template_methods(session, benchmark.id or 0, model, wanted.templates) for model in models]
    if wanted.templates:
        raise UsageError("--templates goes with the objective 'distribution'", "name methods instead")
    methods = [catalog.find_method(session, name) for name in names]
    return [[method] for method in methods] if wanted.objective == "estimate" else [methods]


def _policy_params(policy: str, wanted: StudyOrder) -> dict[str, Any]:
    """What the policy is told of the study's aim."""
    takes = "quantiles" in inspect.signature(POLICIES.get(policy)).parameters
    return {"quantiles": list(wanted.quantiles)} if takes and wanted.quantiles else {}


def micro_dollars(usd: float) -> int:
    """A cap in the ledger's unit; UsageError where it cannot be kept."""
    if not (math.isfinite(usd) and 0 <= usd <= MOST_USD):
        raise UsageError(f"a cap of {usd} US dollars cannot be kept", f"give 0 to {MOST_USD:.0f}")
    return round(usd * 1e6)


def pause(session: Session, study_id: int, reason: str = "paused by hand") -> None:
    """Stop asking for more; what is on its way still arrives."""
    studies.move(session, study_id, StudyState.PAUSED, reason)


def cancel(session: Session, study_id: int, reason: str = "cancelled by hand") -> None:
    """End a study for good; scores that it bought stay."""
    studies.move(session, study_id, StudyState.CANCELLED, reason)


def resume(
    session: Session, study_id: int, *, usd_cap: int | None = None, max_prompts: int | None = None
) -> Study:
    """Go on with a paused or failed study, with higher limits where they are given.

    Prompts whose calls failed without being paid for may be chosen again.

    Args:
        session: A writing session.
        study_id: The study.
        usd_cap: New hard cap in micro-dollars.
        max_prompts: New greatest number of prompts.

    Raises:
        NotFoundError: There is no such study.
        ConflictError: It is neither paused nor failed.
    """
    study = studies.find(session, study_id)
    jobs.free_unpaid(session, study_id)
    if usd_cap is not None:
        ledger.set_cap(session, "study", study_id, "usd", usd_cap)
    if max_prompts is not None:
        study.max_prompts = max_prompts
        session.add(study)
    state = StudyState.WAITING if study.state == StudyState.FAILED else StudyState.RUNNING
    studies.move(session, study_id, state)
    return study


def retry_jobs(session: Session, job_ids: Sequence[int], study_id: int | None = None) -> list[int]:
    """Ask again for what was set aside: a new job for each, reserved like the old one.

    A call that was paid for and is made again is paid for again. The sweeper sends the new jobs.

    Args:
        session: A writing session.
        job_ids: Jobs that were set aside; others are refused.
        study_id: All that this study set aside as well.

    Raises:
        UsageError: A job is not set aside.
        BudgetExceededError: A cap leaves no room; nothing was changed if the transaction is rolled back.
    """
    wanted = (col(Job.id).in_(list(job_ids))) | (col(Job.study_id) == (-1 if study_id is None else study_id))
    parked = session.exec(select(Job).where(wanted, Job.state == JobState.PARKED).order_by(col(Job.id))).all()
    missing = set(job_ids) - {job.id for job in parked}
    if missing:
        raise UsageError(
            f"job {min(missing)} is not set aside", "see which are with: assay jobs list --state parked"
        )
    return [_again(session, job) for job in parked]


def _again(session: Session, job: Job) -> int:
    study = studies.find(session, job.study_id)
    charge = _charge_again(session, job)
    scopes = [("study", job.study_id), ("benchmark", study.benchmark_id), ("overall", 0)]
    new_id = jobs.replace_parked(session, job)
    ledger.reserve(session, ledger.budgets_for(session, scopes, [charge]), {new_id: charge})
    return new_id


def _charge_again(session: Session, job: Job) -> Charge:
    """What was reserved for the job, in every unit that it was reserved in."""
    units = ledger.reserved_for(session, job.id or 0)
    model = session.get_one(Model, session.get_one(Method, job.method_id).model_id)
    return Charge(
        usd=units.get("usd", job.expected_cost),
        calls=units.get("calls", 1),
        tokens=units.get("tokens", 0),
        gpu_ms=units.get("gpu-ms", 0),
        endpoint=endpoint_of(spec_of(model)) if job.kind == "inference" else "",
    )
