"""Studies: created once per trigger, advanced by one agent at a time, moved by listed transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update
from sqlmodel import Session, col, select

from assay.errors import ConflictError, NotFoundError
from storage import ledger
from storage.events import emit
from storage.tables import Benchmark, Method, Study, StudyMethod, StudyState, utc_now

__all__ = [
    "ALLOWED",
    "StudyRequest",
    "create",
    "find",
    "join",
    "leave",
    "methods_of",
    "move",
    "take_step",
    "unfinished",
]

#: Which state may follow which; everything else is refused.
ALLOWED: dict[str, frozenset[str]] = {
    StudyState.WAITING: frozenset(
        {StudyState.RUNNING, StudyState.PAUSED, StudyState.CANCELLED, StudyState.FAILED}
    ),
    StudyState.RUNNING: frozenset(
        {StudyState.DONE, StudyState.PAUSED, StudyState.CANCELLED, StudyState.FAILED, StudyState.WAITING}
    ),
    StudyState.PAUSED: frozenset({StudyState.RUNNING, StudyState.WAITING, StudyState.CANCELLED}),
    StudyState.DONE: frozenset(),
    StudyState.CANCELLED: frozenset(),
    StudyState.FAILED: frozenset({StudyState.WAITING, StudyState.CANCELLED}),
}


@dataclass(frozen=True)
class StudyRequest:
    """What a study is to do; `trigger` makes the same event create it only once."""

    benchmark_id: int
    method_ids: Sequence[int]
    policy: str
    estimator: str
    objective: str = "estimate"
    policy_params: dict[str, Any] = field(default_factory=dict)
    estimator_params: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch_size: int = 10
    level: float = 0.95
    max_prompts: int | None = None
    until_width: float | None = None
    until_confidence: float | None = None
    quantiles: Sequence[float] = ()
    templates: Sequence[str] = ()
    caps: dict[str, int] = field(default_factory=dict)  # unit -> cap, in the ledger's integer units
    scorer_id: int | None = None  # objective compare: the judge
    trigger: str | None = None


def create(session: Session, request: StudyRequest) -> Study | None:
    """Store a study with its rows, caps and event; None where its trigger has created one already."""
    if request.trigger is not None:
        known = session.exec(select(Study.id).where(Study.trigger == request.trigger)).first()
        if known is not None:
            return None
    study = Study(
        objective=request.objective,
        benchmark_id=request.benchmark_id,
        policy=request.policy,
        policy_params=request.policy_params,
        estimator=request.estimator,
        estimator_params=request.estimator_params,
        seed=request.seed,
        batch_size=request.batch_size,
        level=request.level,
        max_prompts=request.max_prompts,
        until_width=request.until_width,
        until_confidence=request.until_confidence,
        quantiles=list(request.quantiles),
        templates=list(request.templates),
        scorer_id=request.scorer_id,
        trigger=request.trigger,
    )
    session.add(study)
    session.flush()
    assert study.id is not None
    for method_id in request.method_ids:
        session.add(StudyMethod(study_id=study.id, method_id=method_id))
    for unit, cap in request.caps.items():
        ledger.set_cap(session, "study", study.id, unit, cap)
    emit(session, "study.created", {"study_id": study.id})
    return study


def find(session: Session, study_id: int) -> Study:
    """The study of that number; NotFoundError where there is none."""
    study = session.get(Study, study_id, populate_existing=True)
    if study is None:
        raise NotFoundError(f"there is no study {study_id}", "list them with: assay study list")
    return study


def methods_of(session: Session, study_id: int) -> list[Method]:
    """The study's rows, in order of method id."""
    query = (
        select(Method)
        .join(StudyMethod, col(StudyMethod.method_id) == col(Method.id))
        .where(StudyMethod.study_id == study_id)
        .order_by(col(Method.id))
    )
    return list(session.exec(query).all())


def join(session: Session, study_id: int, method_id: int) -> bool:
    """Add a row to a study that is not final; False where it is there already."""
    _refuse_final(find(session, study_id))
    if session.get(StudyMethod, (study_id, method_id)) is not None:
        return False
    session.add(StudyMethod(study_id=study_id, method_id=method_id))
    session.flush()
    return True


def leave(session: Session, study_id: int, method_id: int) -> bool:
    """Take a row out of a study that is not final; its scores and costs stay. False where it is not there."""
    _refuse_final(find(session, study_id))
    row = session.get(StudyMethod, (study_id, method_id))
    if row is None:
        return False
    session.delete(row)
    session.flush()
    return True


def _refuse_final(study: Study) -> None:
    if study.state in (StudyState.DONE, StudyState.CANCELLED):
        raise ConflictError(
            f"study {study.id} is {study.state}, its methods stay as they are", "create another"
        )


def unfinished(session: Session) -> list[int]:
    """Studies that still have something to do: waiting or running."""
    query = select(Study.id).where(col(Study.state).in_([StudyState.WAITING, StudyState.RUNNING]))
    return [int(i) for i in session.exec(query.order_by(col(Study.id))).all() if i is not None]


def take_step(session: Session, study_id: int, step: int) -> bool:
    """Move the study from `step` to the next; False where another agent was faster (roll back then)."""
    statement = (
        update(Study)
        .where(col(Study.id) == study_id, col(Study.step) == step)
        .where(col(Study.state).in_([StudyState.WAITING, StudyState.RUNNING]))
        .values(step=Study.step + 1)
    )
    return bool(session.connection().execute(statement).rowcount)


def move(session: Session, study_id: int, state: StudyState, reason: str = "") -> None:
    """Bring a study into another state and say so in an event; the same state again changes nothing.

    Raises:
        ConflictError: The present state does not allow it.
    """
    study = find(session, study_id)
    if study.state == state and study.reason == reason:
        return
    if study.state != state and state not in ALLOWED[study.state]:
        raise ConflictError(
            f"study {study_id} is {study.state} and cannot become {state}",
            f"see: assay study show {study_id}",
        )
    study.state, study.reason, study.waits_budget_id = state, reason, None
    final = state in (StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED)
    study.finished_at = utc_now() if final else None
    session.add(study)
    session.flush()
    benchmark = session.get_one(Benchmark, study.benchmark_id)
    kind = "study.finished" if state == StudyState.DONE else f"study.{state}"
    emit(session, kind, {"study_id": study_id, "benchmark": benchmark.name, "reason": reason})
