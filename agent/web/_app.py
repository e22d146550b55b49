"""The web application: routes, errors and the server."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRouter
from fastapi.staticfiles import StaticFiles
from sqlmodel import select
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from agent import every_eval_ever, render, steering
from agent import views as pages
from agent.api import Gate, create_api
from agent.boards import Boards, Shared
from agent.body import Body
from agent.context import AgentContext
from agent.leaderboard import Leaderboard
from agent.metrics import CONTENT_TYPE, Metrics
from agent.pairwise import comparison_facts
from agent.spending import SpendPage
from agent.web import _charts as charts
from agent.web import _details
from agent.web._headers import HEADERS, SecurityHeaders
from agent.web._leaderboard_view import view_of
from agent.web._prompt_pages import PromptMap
from agent.web._rendering import as_json, html, problem
from agent.web._request import Reading, benchmark_name, number, wants_json
from agent.web._static_page import static_page
from agent.web._steering import ForgedError, form_token, may_steer, read_form, refuse_forged
from assay.errors import AssayError, StorageError, UsageError
from assay.settings import Settings
from storage.database import Database
from storage.tables import Benchmark, StudyState, utc_now
from workers import broker

__all__ = ["create_app", "serve"]

log = logging.getLogger(__name__)
router = APIRouter()

BODIES = 64  # rendered leaderboards kept, each until what it shows changes
PAGE_S = 20.0  # how long a page is kept at most: the ages that it shows grow
STEER_ELSEWHERE = "Studies are paused and resumed through the page only at the machine that serves it."
STEER_HINT = "Use assay study pause or resume, or the API with a token that may run."
SCRAPE_S = 2.0  # two scrapers at once are given the same metrics
CHARTS = 6  # methods of a study that are drawn; the table below has all


def create_app(settings: Settings) -> FastAPI:
    """The application over one database; it opens no connection before the first request."""
    app = FastAPI(title="Assay", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.database = Database(settings.database)
    app.state.settings = settings
    app.state.context = AgentContext(app.state.database, settings, _send_nothing, _send_nothing)
    app.state.boards = Boards(settings.cache_dir)
    app.state.bodies = Shared[Body](BODIES)
    app.state.pages = Shared[Body](BODIES, PAGE_S)
    app.state.maps = Shared[PromptMap](BODIES)
    app.state.spending = Shared[SpendPage](1)
    app.state.metrics = Metrics(app.state.database)
    app.state.scrapes = Shared[bytes](1, SCRAPE_S)
    app.include_router(router)
    app.include_router(_details.router)
    app.mount("/api/v1", create_api(settings, app.state.database, app.state.boards))
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)
    app.add_middleware(Gate, database=app.state.database, settings=settings)
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(AssayError, _assay_error)
    app.add_exception_handler(ForgedError, _forged)
    app.add_exception_handler(Exception, _crash)
    return app


def _send_nothing(*_: object) -> None:
    """Pages only look: whoever works on jobs and fits is sent them by the agent."""


def serve(settings: Settings, host: str = "127.0.0.1", port: int | None = None) -> None:
    """Run the web page until interrupted.

    Args:
        settings: Says which database; an empty SQLite database gets its tables.
        host: Address to listen on. The page asks for no password: keep it to this machine, or put a proxy
            that does before it.
        port: Port, default `settings.web_port`; 0 = any free one.

    Raises:
        UsageError: The address cannot be listened on.
        StorageError: The database cannot be used.
    """
    database = Database(settings.database)
    if database.is_sqlite:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    database.create_or_check()
    database.close()
    listener = _listen(host, settings.web_port if port is None else port)
    config = uvicorn.Config(
        create_app(settings), log_level="warning", access_log=False, server_header=False, lifespan="off"
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Listen before the server starts, so that a taken port is one clear line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise UsageError(
            f"cannot listen on {host} port {port}: {reason}",
            "choose another with --host and --port, or ASSAY_WEB_PORT",
        ) from None
    return listener


# --- pages -------------------------------------------------------------------------------------------------


@router.get("/")
@router.get("/benchmarks")
@router.get("/benchmarks.json")
def benchmarks(request: Request, session: Reading) -> Response:
    """All benchmarks with their leaders."""
    names = session.exec(select(Benchmark.name).order_by(Benchmark.name)).all()
    boards = [request.app.state.boards.get(session, name) for name in names]
    lines = pages.benchmark_lines(session, boards)
    if wants_json(request):
        return as_json({"benchmarks": lines})
    return html(request, "benchmarks.html", benchmarks=lines)


@router.get("/benchmarks/{ref:path}")
def leaderboard(request: Request, ref: str, session: Reading) -> Response:
    """A benchmark's leaderboard as a page, JSON, CSV or Markdown."""
    board = request.app.state.boards.get(session, benchmark_name(session, ref))
    key = (request.url.path, request.url.query)
    if _is_file(request):
        made: Shared[Body] = request.app.state.bodies
        return made.get(key, board.built_at, lambda: _board_file(request, board)).answer(request)
    made = request.app.state.pages
    return made.get(key, board.built_at, lambda: _board_page(request, board)).answer(request)


#: Forms in which a leaderboard is saved. They say when they were made; only the page counts ages from now.
FILES: dict[str, tuple[str, Callable[[Leaderboard], str]]] = {
    "csv": ("text/csv", render.as_csv),
    "md": ("text/markdown", render.as_markdown),
    "html": ("text/html", static_page),
    "eee": ("application/json", lambda board: json.dumps(every_eval_ever.records(board), indent=1)),
}


def _is_file(request: Request) -> bool:
    return wants_json(request) or request.query_params.get("format", "") in FILES


def _board_file(request: Request, board: Leaderboard) -> Body:
    listed = board.only(view_of(board, dict(request.query_params)).rows)
    kind = request.query_params.get("format", "")
    if kind not in FILES:
        return Body.of(as_json(render.as_dict(listed)))
    media_type, made = FILES[kind]
    return Body.of(_file(made(listed), "json" if kind == "eee" else kind, media_type))


def _board_page(request: Request, board: Leaderboard) -> Body:
    board = replace(board, built_at=utc_now())  # ages are counted from now
    view = view_of(board, dict(request.query_params))
    axis = charts.bar_axis(view.rows)
    rows = [(row, charts.bar_of(row, axis)) for row in view.shown]
    notes = render.notes(board)
    page = html(request, "leaderboard.html", board=board, view=view, rows=rows, axis=axis, notes=notes)
    return Body.of(page)


def _file(content: str, suffix: str, media_type: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="leaderboard.{suffix}"'}
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=headers)


@router.get("/studies")
@router.get("/studies.json")
def studies(request: Request, session: Reading) -> Response:
    """The newest studies."""
    state, before = request.query_params.get("state", ""), request.query_params.get("before")
    known = [str(known) for known in StudyState]
    if state and state not in known:
        raise UsageError(f"unknown state '{state[:50]}'", f"use one of: {', '.join(known)}")
    lines = pages.study_lines(session, state=state, before=None if before is None else number(before))
    if wants_json(request):
        return as_json({"studies": lines})
    return html(request, "studies.html", studies=lines, state=state, states=known)


@router.get("/studies/{ref}")
def study(request: Request, ref: str, session: Reading) -> Response:
    """One study: progress, spend, interval, decisions."""
    page = pages.study_page(session, number(ref))
    if wants_json(request):
        return as_json(page)
    drawn = list(page.steps.items())[:CHARTS]
    curves = {
        name: charts.curve_of([(s.acquired, s.low, s.score, s.high) for s in steps]) for name, steps in drawn
    }
    refresh = request.query_params.get("refresh") == "5"
    return html(
        request,
        "study.html",
        page=page,
        study=page.study,
        curves=curves,
        comparison_facts=comparison_facts(page.comparison),
        refresh=refresh,
        steers=_buttons(request, page.study),
    )


#: What may be done with a study in which state.
STEERING = {
    "pause": (StudyState.WAITING, StudyState.RUNNING),
    "resume": (StudyState.PAUSED, StudyState.FAILED),
}


def _buttons(request: Request, shown: pages.StudyLine) -> list[tuple[str, str, str]]:
    """(label, address, form token) of each button that this reader may press."""
    if not may_steer(request):
        return []
    found = [
        (what, f"/studies/{shown.id}/{what}") for what, states in STEERING.items() if shown.state in states
    ]
    return [(what, address, form_token(address)) for what, address in found]


@router.post("/studies/{ref}/{what}")
async def steer(request: Request, ref: str, what: str) -> Response:
    """Pause or resume a study, for who sits at this machine; then its page again."""
    study_id = number(ref)
    if what not in STEERING:
        raise UsageError(f"a study cannot be told to '{what[:50]}'", "use one of: pause, resume")
    if not may_steer(request):
        return problem(request, 403, "Not from here", STEER_ELSEWHERE, STEER_HINT)
    refuse_forged(request, (await read_form(request)).get("token", ""))
    await run_in_threadpool(_steer, request.app.state, study_id, what)
    return Response(status_code=303, headers={"Location": f"/studies/{study_id}"})


def _steer(state: State, study_id: int, what: str) -> None:
    with state.database.begin() as session:
        (steering.pause if what == "pause" else steering.resume)(session, study_id)
    with broker.client(state.settings.broker, socket_connect_timeout=1, socket_timeout=1) as connection:
        broker.wake_agent(connection)


def _forged(request: Request, error: Exception) -> Response:
    detail = "The request did not come from this page, or the server was started again since."
    return problem(request, 403, "Refused", detail, "Load the study's page again and press the button there.")


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Whether this process answers."""
    return {"status": "ok"}


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """For Prometheus."""
    state = request.app.state
    return Response(state.scrapes.get("", "", state.metrics.text), media_type=CONTENT_TYPE)


@router.get("/readyz")
def readyz(request: Request) -> Response:
    """Whether it can serve: the database is reachable and of this program's schema version."""
    try:
        request.app.state.database.check()
    except StorageError as error:
        return as_json({"status": "not ready", "database": error.message, "hint": error.hint}, 503)
    return as_json({"status": "ready", "database": "ok"})


# --- errors ------------------------------------------------------------------------------------------------


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(request, 404, "Page not found", "There is no such page.", "Start at the benchmarks.")
    if error.status_code == 405:
        hint = "These pages can only be read; change things with the assay command."
        return problem(request, 405, "Read only", "This page takes no such request.", hint)
    return problem(request, error.status_code, "Request refused", str(error.detail), "")


def _assay_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AssayError)
    if isinstance(error, UsageError):
        return problem(request, 404, "Not found", error.message, error.hint)
    log.warning("%s: %s", request.url.path, error)
    status = 503 if isinstance(error, StorageError) else 500
    return problem(request, status, "Not available now", error.message, error.hint)


def _crash(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    detail = f"An error that nobody foresaw: {type(error).__name__}."
    response = problem(
        request, 500, "Something went wrong", detail, "The server's log has the details; please report it."
    )
    response.headers.update(HEADERS)  # this answer is sent from outside all other middleware
    return response
