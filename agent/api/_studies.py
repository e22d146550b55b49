"""Studies: order, follow and steer them, and read why each prompt was bought."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from sqlmodel import Session, col, select
from starlette.concurrency import run_in_threadpool

from agent import steering, views
from agent.api._access import Reader, Reading, Runner
from agent.api._lists import Listing, Number, page_of
from agent.api._problems import responses
from agent.steering import StudyOrder
from agent.wire import DecisionOut, EstimateOut, Page, ResumeIn, StudyDetail, StudyIn, StudyOut
from storage import studies
from storage.database import Database
from storage.tables import Benchmark, Job, Study, StudyState

__all__ = ["router"]

router = APIRouter(tags=["studies"])

LOOK_S = 0.5  # between two looks at a study that is followed
BEAT_S = 15.0  # a silent stream says so often that it is alive
FINAL = (StudyState.DONE, StudyState.CANCELLED, StudyState.FAILED)
READ = responses(401, 403, 404, 422, 429, 503)
WRITE = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
EVENT = {
    "type": "object",
    "properties": {
        "event": {"enum": ["progress", "end"]},
        "id": {"type": "string"},
        "data": {"type": "string"},
    },
    "required": ["event", "data"],
}
State = Literal["waiting", "running", "paused", "done", "cancelled", "failed"]


@router.get("/studies", dependencies=Reader, responses=READ)
def list_studies(
    session: Reading,
    cursor: Listing,
    state: Annotated[State | None, Query()] = None,
    benchmark: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[StudyOut]:
    """Studies with their progress and spending."""
    query = select(Study, Benchmark.name).join(Benchmark, col(Benchmark.id) == col(Study.benchmark_id))
    if state is not None:
        query = query.where(Study.state == state)
    if benchmark is not None:
        query = query.where(Benchmark.name == benchmark)

    def show(row: tuple[Study, str]) -> StudyOut:
        return StudyOut.model_validate(views.study_line(session, *row))

    return page_of(session, query, Study.id, cursor, show, lambda row: row[0].id)


@router.post("/studies", status_code=201, dependencies=Runner, responses=WRITE)
def create_studies(request: Request, wanted: StudyIn) -> list[StudyDetail]:
    """Order studies: one per method for the objective "estimate", else one of all methods."""
    order = StudyOrder(**wanted.model_dump())
    with request.app.state.database.begin() as session:
        ids = steering.order(session, request.app.state.settings, order)
        return [_detail(session, study_id) for study_id in ids]


@router.get("/studies/{study_id}", dependencies=Reader, responses=READ)
def get_study(session: Reading, study_id: Number) -> StudyDetail:
    """A study with its newest estimates."""
    return _detail(session, study_id)


@router.post("/studies/{study_id}/pause", dependencies=Runner, responses=WRITE)
def pause_study(request: Request, study_id: Number) -> StudyDetail:
    """Stop asking for more; what is on its way still arrives."""
    with request.app.state.database.begin() as session:
        steering.pause(session, study_id)
        return _detail(session, study_id)


@router.post("/studies/{study_id}/resume", dependencies=Runner, responses=WRITE)
def resume_study(request: Request, study_id: Number, limits: ResumeIn | None = None) -> StudyDetail:
    """Go on with a paused or failed study, with higher limits where it ran into one."""
    limits = limits or ResumeIn()
    cap = None if limits.max_usd is None else steering.micro_dollars(limits.max_usd)
    with request.app.state.database.begin() as session:
        steering.resume(session, study_id, usd_cap=cap, max_prompts=limits.max_prompts)
        return _detail(session, study_id)


@router.post("/studies/{study_id}/cancel", dependencies=Runner, responses=WRITE)
def cancel_study(request: Request, study_id: Number) -> StudyDetail:
    """End a study for good; scores that it bought stay."""
    with request.app.state.database.begin() as session:
        steering.cancel(session, study_id)
        return _detail(session, study_id)


@router.get("/studies/{study_id}/decisions", dependencies=Reader, responses=READ)
def list_decisions(session: Reading, study_id: Number, cursor: Listing) -> Page[DecisionOut]:
    """Why each prompt was bought: policy, estimator version, gain, probability, cost, and what came of it."""
    studies.find(session, study_id)
    query = views.decisions_query().where(Job.study_id == study_id)

    def show(row: Any) -> DecisionOut:
        return DecisionOut.model_validate(views.decision(*row))

    return page_of(session, query, Job.id, cursor, show, lambda row: row[0].id)


@router.get(
    "/studies/{study_id}/progress",
    dependencies=Reader,
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: `progress` (a study as JSON) at each change, then `end`.",
            "content": {"text/event-stream": {"schema": EVENT}},
        },
        **READ,
    },
)
async def follow_study(
    request: Request,
    study_id: Number,
    max_s: Annotated[float, Query(ge=0, le=3600, description="Seconds after which the stream ends.")] = 3600,
) -> StreamingResponse:
    """Follow a study by server-sent events until it is over (or `max_s` have passed)."""
    database: Database = request.app.state.database
    first = await run_in_threadpool(_look, database, study_id)
    stream = _progress(database, study_id, first, time.monotonic() + max_s)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _progress(database: Database, study_id: int, now: StudyDetail, until: float) -> AsyncIterator[str]:
    number, before, spoke = 0, None, time.monotonic()
    while True:
        if now != before:
            number, spoke = number + 1, time.monotonic()
            yield _message("progress", now.model_dump_json(), number)
        if now.state in FINAL:
            yield _message("end", json.dumps({"state": now.state, "reason": now.reason}), number + 1)
            return
        if time.monotonic() >= until:
            return
        if time.monotonic() - spoke > BEAT_S:
            spoke = time.monotonic()
            yield ": still there\n\n"
        await asyncio.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        before, now = now, await run_in_threadpool(_look, database, study_id)


def _look(database: Database, study_id: int) -> StudyDetail:
    with database.read() as session:
        return _detail(session, study_id)


def _message(kind: str, data: str, number: int) -> str:
    return f"event: {kind}\nid: {number}\ndata: {data}\n\n"  # JSON holds no line breaks


def _detail(session: Session, study_id: int) -> StudyDetail:
    study = studies.find(session, study_id)
    name = session.get_one(Benchmark, study.benchmark_id).name
    line = StudyOut.model_validate(views.study_line(session, study, name))
    newest = [EstimateOut.model_validate(found) for found in views.newest_estimates(session, study_id)]
    return StudyDetail(
        **line.model_dump(),
        level=study.level,
        until_width=study.until_width,
        until_confidence=study.until_confidence,
        batch_size=study.batch_size,
        seed=study.seed,
        comparison=study.findings,
        estimates=newest,
    )
