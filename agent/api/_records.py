"""What happened and what is kept: jobs, budgets, events, estimator versions, watchers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from sqlmodel import col, select

from agent import retraining, views
from agent.api._access import Admin, Reader, Reading, Runner
from agent.api._lists import Listing, Number, page_of
from agent.api._problems import responses
from agent.wire import (
    LARGEST_INT,
    BudgetIn,
    BudgetOut,
    EventOut,
    JobOut,
    Page,
    RetrainIn,
    VersionOut,
    WatcherOut,
)
from assay.errors import NotFoundError
from estimators import ESTIMATORS
from storage import catalog, ledger, studies, versions
from storage.tables import Benchmark, Budget, Endpoint, EstimatorVersion, Event, Job

__all__ = ["router"]

router = APIRouter()

READ = responses(401, 403, 404, 422, 429, 503)
WRITE = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
Scope = Annotated[Literal["study", "benchmark", "endpoint", "overall"], Path()]
Unit = Annotated[Literal["usd", "calls", "tokens", "gpu-ms"], Path()]
ScopeId = Annotated[
    int,
    Path(
        ge=0,
        le=LARGEST_INT,
        description="Study, benchmark or endpoint (as GET /budgets gives it); 0 for overall.",
    ),
]


@router.get("/jobs", dependencies=Reader, tags=["jobs"], responses=READ)
def list_jobs(
    session: Reading,
    cursor: Listing,
    study_id: Annotated[int | None, Query(ge=1, le=LARGEST_INT)] = None,
    state: Annotated[Literal["queued", "leased", "done", "parked", "cancelled"] | None, Query()] = None,
) -> Page[JobOut]:
    """Jobs, of one study or of all."""
    query = views.jobs_query()
    if study_id is not None:
        query = query.where(Job.study_id == study_id)
    if state is not None:
        query = query.where(Job.state == state)
    return page_of(session, query, Job.id, cursor, _job, lambda row: row[0].id)


@router.get("/jobs/{job_id}", dependencies=Reader, tags=["jobs"], responses=READ)
def get_job(session: Reading, job_id: Number) -> JobOut:
    """A job by its number."""
    found = session.exec(views.jobs_query().where(Job.id == job_id)).first()
    if found is None:
        raise NotFoundError(f"there is no job {job_id}", "list them with: GET /jobs")
    return _job(found)


def _job(row: Any) -> JobOut:
    job, method, dataset, prompt = row
    named = {"method": method, "dataset": dataset, "prompt": prompt}
    return JobOut.model_validate({**job.model_dump(), **named})


@router.get("/budgets", dependencies=Reader, tags=["budgets"], responses=READ)
def list_budgets(
    session: Reading,
    cursor: Listing,
    scope: Annotated[Literal["study", "benchmark", "endpoint", "overall"] | None, Query()] = None,
) -> Page[BudgetOut]:
    """Caps and what is used of them."""
    query = select(Budget) if scope is None else select(Budget).where(Budget.scope == scope)
    return page_of(session, query, Budget.id, cursor, BudgetOut.model_validate, lambda found: found.id)


@router.put("/budgets/{scope}/{scope_id}/{unit}", dependencies=Admin, tags=["budgets"], responses=WRITE)
def set_budget(request: Request, scope: Scope, scope_id: ScopeId, unit: Unit, wanted: BudgetIn) -> BudgetOut:
    """Set a cap. Below what is spent already, nothing more is bought; nothing is taken back."""
    with request.app.state.database.begin() as session:
        if scope == "study":
            studies.find(session, scope_id)
        elif scope == "benchmark" and session.get(Benchmark, scope_id) is None:
            raise NotFoundError(f"there is no benchmark {scope_id}", "list them with: GET /benchmarks")
        elif scope == "endpoint" and session.get(Endpoint, scope_id) is None:
            raise NotFoundError(
                f"no cap of an endpoint {scope_id} is known",
                "set its first by: assay budget set endpoint URL",
            )
        elif scope == "overall" and scope_id != 0:
            raise NotFoundError("the overall budget has scope id 0", "use /budgets/overall/0/UNIT")
        budget = ledger.set_cap(session, scope, scope_id, unit, wanted.cap, period=wanted.period)
        return BudgetOut.model_validate(budget)


@router.get("/events", dependencies=Reader, tags=["events"], responses=READ)
def list_events(
    session: Reading, cursor: Listing, kind: Annotated[str | None, Query(max_length=100)] = None
) -> Page[EventOut]:
    """Events; ask again with `after` set to the last id to see what is new."""
    query = select(Event) if kind is None else select(Event).where(Event.kind == kind)
    return page_of(session, query, Event.id, cursor, EventOut.model_validate, lambda found: found.id)


@router.get("/watchers", dependencies=Reader, tags=["watchers"], responses=READ)
def list_watchers(request: Request, session: Reading) -> list[WatcherOut]:
    """The configured sources and how they are."""
    found = views.watcher_lines(session, request.app.state.settings)
    return [WatcherOut.model_validate(line) for line in found]


# --- estimators --------------------------------------------------------------------------------------------


@router.get("/estimators", dependencies=Reader, tags=["estimators"], responses=READ)
def list_versions(
    session: Reading, cursor: Listing, benchmark: Annotated[str | None, Query(max_length=200)] = None
) -> Page[VersionOut]:
    """Versions of fitted estimators."""
    query = select(EstimatorVersion, Benchmark.name).join(
        Benchmark, col(Benchmark.id) == col(EstimatorVersion.benchmark_id)
    )
    if benchmark is not None:
        query = query.where(Benchmark.name == benchmark)
    return page_of(session, query, EstimatorVersion.id, cursor, _version, lambda row: row[0].id)


@router.get("/estimators/{version_id}", dependencies=Reader, tags=["estimators"], responses=READ)
def get_version(session: Reading, version_id: Number) -> VersionOut:
    """A version by its number."""
    version = versions.find(session, version_id)
    return _version((version, session.get_one(Benchmark, version.benchmark_id).name))


@router.post(
    "/benchmarks/{name:path}/retrain",
    status_code=202,
    dependencies=Runner,
    tags=["estimators"],
    responses=WRITE,
)
def retrain(request: Request, name: str, wanted: RetrainIn | None = None) -> VersionOut:
    """Ask for a challenger; it becomes champion only if it predicts held-out methods better."""
    wanted = wanted or RetrainIn()
    estimator = wanted.estimator or request.app.state.settings.estimator
    ESTIMATORS.get(estimator)
    with request.app.state.database.begin() as session:
        benchmark = catalog.find_benchmark(session, name)
        version = versions.want(
            session, benchmark, estimator, {}, warm=not wanted.cold, reason="asked for through the API"
        )
        return _version((version, benchmark.name))


@router.post("/estimators/{version_id}/promote", dependencies=Admin, tags=["estimators"], responses=WRITE)
def promote(request: Request, version_id: Number) -> VersionOut:
    """Make a version the champion, whatever its validation said."""
    with request.app.state.database.begin() as session:
        version = retraining.promote(session, version_id, "promoted by hand")
        return _version((version, session.get_one(Benchmark, version.benchmark_id).name))


def _version(row: tuple[EstimatorVersion, str]) -> VersionOut:
    version, benchmark = row
    return VersionOut(
        id=version.id or 0,
        benchmark=benchmark,
        estimator=version.estimator,
        state=version.state,
        reason=version.reason,
        parent_id=version.parent_id,
        history_methods=len(version.history.get("methods", [])),
        history_scores=int(version.history.get("scores", 0)),
        validation=version.validation,
        created_at=version.created_at,
        trained_at=version.trained_at,
    )
