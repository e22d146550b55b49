"""What pages and REST API show, read from the database once and rendered as HTML or JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import and_, func
from sqlmodel import Session, col, select

from agent.leaderboard import OPEN_STUDIES, Leaderboard
from agent.watchers import ETAG, SOURCE, configured
from assay.settings import Settings
from assay.specs import WatcherSpec
from assay.statuses import Status
from storage import catalog, estimates, events, studies
from storage.coverage import load_coverage
from storage.tables import (
    Benchmark,
    Budget,
    Dataset,
    Estimate,
    EstimatorVersion,
    Job,
    JobState,
    LedgerEntry,
    LedgerState,
    Method,
    Prompt,
    Score,
    Scorer,
    Study,
    StudyMethod,
    WatchedItem,
)

__all__ = [
    "BenchmarkLine",
    "BudgetLine",
    "Decision",
    "EstimateLine",
    "EventLine",
    "StudyLine",
    "StudyPage",
    "WatcherLine",
    "benchmark_facts",
    "benchmark_lines",
    "decision",
    "decisions_query",
    "estimate_lines",
    "event_lines",
    "jobs_query",
    "newest_estimates",
    "study_line",
    "study_lines",
    "study_page",
    "watcher_lines",
]

EXCERPT = 140  # characters of a prompt shown beside its id


@dataclass(frozen=True)
class BenchmarkLine:
    """A benchmark in the list of all."""

    name: str
    prompts: int
    datasets: int
    models: int
    leader: str | None
    leader_score: float | None
    leader_low: float | None
    leader_high: float | None
    leader_sure: bool  # whether no other method can be first
    open_studies: int
    cost: int


@dataclass(frozen=True)
class BudgetLine:
    """A cap of a study and what is used of it; usd in micro-dollars."""

    unit: str
    cap: int
    spent: int
    reserved: int


@dataclass(frozen=True)
class StudyLine:
    """A study in the list of all."""

    id: int
    benchmark: str
    methods: tuple[str, ...]
    objective: str
    policy: str
    estimator: str
    version_id: int | None
    state: str
    reason: str
    bought: int
    open_jobs: int
    parked: int
    max_prompts: int | None
    budgets: tuple[BudgetLine, ...]
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class Decision:
    """A prompt that the study decided to buy, why, and what came of it.

    Attributes:
        version_id: Estimator version that the step was decided with.
        gain: What the policy expected of it; None where it says nothing.
        probability: Probability with which it was drawn; None where it was chosen, not drawn.
        expected_cost: Micro-dollars reserved for it (the worst case).
        cost: Micro-dollars settled; None while nothing is.
    """

    job_id: int
    study_id: int
    step: int
    policy: str
    version_id: int | None
    method: str
    prompt_id: int
    prompt: str
    excerpt: str
    gain: float | None
    probability: float | None
    expected_cost: int
    cost: int | None
    state: str
    reason: str
    attempts: int
    score: float | None
    created_at: datetime


@dataclass(frozen=True)
class EstimateLine:
    """A method's estimate after a step of a study."""

    method: str
    study_id: int
    step: int
    score: float
    std: float
    low: float
    high: float
    level: float
    interval_kind: str
    acquired: int
    total: int
    cost: int
    probability_best: float | None
    version_id: int | None
    created_at: datetime


@dataclass(frozen=True)
class StudyPage:
    """Everything about one study."""

    study: StudyLine
    level: float
    until_width: float | None
    batch_size: int
    seed: int
    version_state: str
    steps: dict[str, tuple[EstimateLine, ...]]  # by method
    decisions: tuple[Decision, ...]
    decided: int
    comparison: dict[str, Any]  # what a comparison has found; empty for other objectives


@dataclass(frozen=True)
class WatcherLine:
    """A watched source.

    Attributes:
        name: Under which it remembers what it saw.
        kind: A name of `agent.watchers.WATCHERS`.
        where: Its folder, address or source.
        state: "up", "down", or "waiting" for its first look.
        items: What it brought, refused items included.
        refused: Items that could not be taken; events watcher.error say why.
        failures: How often in a row the source did not answer.
        error: Why it does not answer.
        seen_at: When it last answered (folders: when it last brought something).
    """

    name: str
    kind: str
    where: str
    state: str
    items: int
    refused: int
    failures: int
    error: str
    seen_at: datetime | None


@dataclass(frozen=True)
class EventLine:
    """Something that happened."""

    id: int
    kind: str
    payload: dict[str, Any]
    created_at: datetime
    handled_at: datetime | None
    error: str


def benchmark_lines(session: Session, boards: Iterable[Leaderboard]) -> list[BenchmarkLine]:
    """One line per leaderboard, with its count of open studies."""
    query = (
        select(Benchmark.name, func.count())
        .join(Study, col(Study.benchmark_id) == col(Benchmark.id))
        .where(col(Study.state).in_(OPEN_STUDIES))
        .group_by(col(Benchmark.name))
    )
    running: dict[str, int] = dict(session.exec(query).all())
    return [_benchmark_line(board, running.get(board.benchmark, 0)) for board in boards]


def _benchmark_line(board: Leaderboard, running: int) -> BenchmarkLine:
    first = board.rows[0] if board.rows else None
    return BenchmarkLine(
        name=board.benchmark,
        prompts=board.prompts,
        datasets=len(board.datasets),
        models=len(board.rows),
        leader=first.method if first else None,
        leader_score=first.score if first else None,
        leader_low=first.low if first else None,
        leader_high=first.high if first else None,
        leader_sure=bool(first and first.rank_worst == 1),
        open_studies=running,
        cost=board.cost,
    )


def benchmark_facts(session: Session, benchmark: Benchmark, cache: Path | None = None) -> dict[str, Any]:
    """A benchmark's size and its datasets.

    Args:
        session: A reading session.
        benchmark: The benchmark.
        cache: Folder for what was counted before (`Settings.cache_dir`); None = no cache.
    """
    query = (
        select(Dataset, Scorer.name, func.count(col(Prompt.id)))
        .join(Scorer, col(Scorer.id) == col(Dataset.scorer_id))
        .join(Prompt, col(Prompt.dataset_id) == col(Dataset.id), isouter=True)
        .where(Dataset.benchmark_id == benchmark.id)
        .group_by(col(Dataset.id), col(Scorer.name))
        .order_by(col(Dataset.id))
    )
    datasets = [
        {
            "name": dataset.name,
            "prompts": prompts,
            "weight": dataset.weight,
            "score_type": dataset.score_type,
            "scorer": scorer,
        }
        for dataset, scorer, prompts in session.exec(query).all()
    ]
    return {
        "name": benchmark.name,
        "revision": benchmark.revision,
        "prompts": sum(d["prompts"] for d in datasets),
        "methods": len(load_coverage(session, benchmark, cache).method_pks),
        "datasets": datasets,
    }


def study_line(session: Session, study: Study, benchmark: str) -> StudyLine:
    """One study, whose benchmark has that name."""
    return _lines(session, [(study, benchmark)])[0]


def study_lines(
    session: Session, *, state: str = "", before: int | None = None, limit: int = 50
) -> list[StudyLine]:
    """The newest studies, newest first."""
    query = select(Study, Benchmark.name).join(Benchmark, col(Benchmark.id) == col(Study.benchmark_id))
    if state:
        query = query.where(Study.state == state)
    if before is not None:
        query = query.where(col(Study.id) < before)
    found = session.exec(query.order_by(col(Study.id).desc()).limit(limit)).all()
    return _lines(session, [(study, name) for study, name in found])


def _lines(session: Session, found: Sequence[tuple[Study, str]]) -> list[StudyLine]:
    ids = [int(study.id or 0) for study, _ in found]
    names = _method_names(session, ids)
    counts = _job_counts(session, ids)
    budgets = _budgets(session, ids)
    return [
        StudyLine(
            id=pk,
            benchmark=benchmark,
            methods=tuple(names[pk]),
            objective=study.objective,
            policy=study.policy,
            estimator=study.estimator,
            version_id=study.version_id,
            state=study.state,
            reason=study.reason,
            bought=counts[pk][JobState.DONE],
            open_jobs=counts[pk][JobState.QUEUED] + counts[pk][JobState.LEASED],
            parked=counts[pk][JobState.PARKED],
            max_prompts=study.max_prompts,
            budgets=tuple(budgets[pk]),
            created_at=study.created_at,
            finished_at=study.finished_at,
        )
        for pk, (study, benchmark) in zip(ids, found, strict=True)
    ]


def _method_names(session: Session, ids: Sequence[int]) -> dict[int, list[str]]:
    query = (
        select(StudyMethod.study_id, Method.name)
        .join(Method, col(Method.id) == col(StudyMethod.method_id))
        .where(col(StudyMethod.study_id).in_(ids))
        .order_by(col(Method.id))
    )
    names: dict[int, list[str]] = defaultdict(list)
    for study_id, name in session.exec(query).all():
        names[study_id].append(name)
    return names


def _job_counts(session: Session, ids: Sequence[int]) -> dict[int, dict[str, int]]:
    query = (
        select(Job.study_id, Job.state, func.count())
        .where(col(Job.study_id).in_(ids), Job.status != Status.ANSWERED)  # its verdict counts
        .group_by(col(Job.study_id), col(Job.state))
    )
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for study_id, state, count in session.exec(query).all():
        counts[study_id][state] = count
    return counts


def _budgets(session: Session, ids: Sequence[int]) -> dict[int, list[BudgetLine]]:
    query = select(Budget).where(Budget.scope == "study", col(Budget.scope_id).in_(ids))
    found: dict[int, list[BudgetLine]] = defaultdict(list)
    for b in session.exec(query.order_by(col(Budget.id))).all():
        found[b.scope_id].append(BudgetLine(b.unit, b.cap, b.spent, b.reserved))
    return found


def study_page(session: Session, study_id: int, decisions: int = 50) -> StudyPage:
    """Everything about one study, with its newest decisions.

    Raises:
        UsageError: There is no such study.
    """
    study = studies.find(session, study_id)
    benchmark = session.get_one(Benchmark, study.benchmark_id)
    version = session.get(EstimatorVersion, study.version_id) if study.version_id else None
    return StudyPage(
        study=_lines(session, [(study, benchmark.name)])[0],
        level=study.level,
        until_width=study.until_width,
        batch_size=study.batch_size,
        seed=study.seed,
        version_state=version.state if version else "",
        steps=_steps(session, study_id),
        decisions=tuple(_decisions(session, study_id, decisions)),
        decided=int(session.exec(select(func.count()).where(Job.study_id == study_id)).one()),
        comparison=study.findings,
    )


def _steps(session: Session, study_id: int) -> dict[str, tuple[EstimateLine, ...]]:
    names = {method.id: method.name for method in studies.methods_of(session, study_id)}
    found: dict[str, list[EstimateLine]] = {name: [] for name in names.values()}
    for estimate in estimates.history(session, study_id):
        name = names.get(estimate.method_id, f"method {estimate.method_id}")
        found.setdefault(name, []).append(_estimate_line(estimate, name))
    return {name: tuple(steps) for name, steps in found.items()}


def _decisions(session: Session, study_id: int, limit: int) -> list[Decision]:
    query = decisions_query().where(Job.study_id == study_id).order_by(col(Job.id).desc()).limit(limit)
    return [decision(*row) for row in session.exec(query).all()]


def decisions_query() -> Any:
    """Selects what `decision` takes; narrow it by `Job`."""
    excerpt = func.substr(Prompt.text, 1, EXCERPT + 1)  # a prompt may be a megabyte long
    its_score = and_(
        col(Score.dataset_id) == col(Prompt.dataset_id),
        col(Score.scorer_id) == col(Job.scorer_id),
        col(Score.method_id) == col(Job.method_id),
        col(Score.prompt_id) == col(Job.prompt_id),
    )
    its_step = and_(
        col(Estimate.study_id) == col(Job.study_id),
        col(Estimate.method_id) == col(Job.method_id),
        col(Estimate.step) == col(Job.step),
    )
    settled = (
        select(LedgerEntry.settled)
        .join(Budget, col(Budget.id) == col(LedgerEntry.budget_id))
        .where(LedgerEntry.job_id == Job.id, LedgerEntry.state == LedgerState.SETTLED)
        .where(Budget.scope == "study", Budget.unit == "usd")
        .scalar_subquery()
    )
    columns = (Job, Study.policy, Estimate.version_id, Method.name, Dataset.name, Prompt.key, excerpt)
    return (
        select(*columns, Score.value, settled)  # type: ignore[call-overload]
        .join(Study, col(Study.id) == col(Job.study_id))
        .join(Method, col(Method.id) == col(Job.method_id))
        .join(Prompt, col(Prompt.id) == col(Job.prompt_id))
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .join(Score, its_score, isouter=True)
        .join(Estimate, its_step, isouter=True)
    )


def decision(
    job: Job,
    policy: str,
    version_id: int | None,
    method: str,
    dataset: str,
    key: str,
    excerpt: str,
    score: float | None,
    cost: int | None,
) -> Decision:
    """A row of `decisions_query`."""
    return Decision(
        job_id=int(job.id or 0),
        study_id=job.study_id,
        step=job.step,
        policy=policy,
        version_id=version_id,
        method=method,
        prompt_id=job.prompt_id,
        prompt=f"{dataset}/{key}",
        excerpt=excerpt if len(excerpt) <= EXCERPT else excerpt[:EXCERPT] + "…",
        gain=job.gain,
        probability=job.probability,
        expected_cost=job.expected_cost,
        cost=cost,
        state=job.state,
        reason=job.reason,
        attempts=job.attempts,
        score=score if job.state == JobState.DONE else None,
        created_at=job.created_at,
    )


def jobs_query() -> Any:
    """Selects jobs with the names of their method, dataset and prompt; narrow it by `Job`."""
    return (
        select(Job, Method.name, Dataset.name, Prompt.key)
        .join(Method, col(Method.id) == col(Job.method_id))
        .join(Prompt, col(Prompt.id) == col(Job.prompt_id))
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
    )


def estimate_lines(session: Session, benchmark_id: int, method: str | None = None) -> list[EstimateLine]:
    """The newest estimate of each method of a benchmark; or all of one method, oldest first.

    Raises:
        NotFoundError: There is no such method.
    """
    query = select(Estimate, Method.name).join(Method, col(Method.id) == col(Estimate.method_id))
    query = query.where(Estimate.benchmark_id == benchmark_id)
    if method is not None:
        query = query.where(Method.id == catalog.find_method(session, method).id)
    else:
        query = query.where(col(Estimate.id).in_(estimates.newest_ids(benchmark_id)))
    return [_estimate_line(*row) for row in session.exec(query.order_by(col(Estimate.id))).all()]


def newest_estimates(session: Session, study_id: int) -> list[EstimateLine]:
    """The newest estimate of each method of a study."""
    newest = select(func.max(Estimate.id)).where(Estimate.study_id == study_id)
    query = (
        select(Estimate, Method.name)
        .join(Method, col(Method.id) == col(Estimate.method_id))
        .where(col(Estimate.id).in_(newest.group_by(col(Estimate.method_id))))
    )
    return [_estimate_line(*row) for row in session.exec(query.order_by(col(Estimate.id))).all()]


def _estimate_line(estimate: Estimate, method: str) -> EstimateLine:
    values = estimate.model_dump()
    names = (field.name for field in fields(EstimateLine) if field.name != "method")
    return EstimateLine(method=method, **{name: values[name] for name in names})


def watcher_lines(session: Session, settings: Settings) -> list[WatcherLine]:
    """The configured watchers, in the order of the configuration."""
    rows: dict[str, list[WatchedItem]] = defaultdict(list)
    for item in session.exec(select(WatchedItem)).all():
        rows[item.watcher].append(item)
    return [_watcher_line(spec, rows[spec.label]) for spec in configured(settings)]


def _watcher_line(spec: WatcherSpec, rows: Sequence[WatchedItem]) -> WatcherLine:
    source = next((row for row in rows if row.key == SOURCE), None)
    items = [row for row in rows if row.key not in (SOURCE, ETAG)]
    state = "waiting" if not rows else "down" if source and source.error else "up"
    return WatcherLine(
        name=spec.label,
        kind=spec.kind,
        where=str(spec.folder or spec.url or spec.source or ""),
        state=state,
        items=len(items),
        refused=sum(bool(row.error) for row in items),
        failures=int(source.fingerprint) if source else 0,
        error=source.error if source else "",
        seen_at=source.seen_at if source else max((row.seen_at for row in items), default=None),
    )


def event_lines(session: Session, limit: int = 100) -> list[EventLine]:
    """The newest events, newest first."""
    return [
        EventLine(int(e.id or 0), e.kind, e.payload, e.created_at, e.handled_at, e.error)
        for e in events.recent(session, limit)
    ]
