"""Routes of the pages beside leaderboards and studies: models, comparisons, prompts, spending, errors."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request, Response
from fastapi.routing import APIRouter
from sqlmodel import select

from agent import spending, views
from agent.comparison import compare
from agent.web import _charts as charts
from agent.web import _model_pages as models
from agent.web import _prompt_pages as prompts
from agent.web import _trouble_pages as troubles
from agent.web._rendering import as_json, html
from agent.web._request import Reading, number, refuse_hidden, wants_json
from assay.errors import UsageError
from storage.tables import Benchmark

__all__ = ["router"]

router = APIRouter()

STANDINGS = 12  # (method, benchmark) pairs of a model's page
CHOICES = 500  # model names that a browser offers to choose from


@router.get("/models")
@router.get("/models.json")
def model_list(request: Request, session: Reading) -> Response:
    """All models by name."""
    text, after = request.query_params.get("q", "").strip()[:200], request.query_params.get("after", "")[:200]
    refuse_hidden(text + after, "model")
    lines = models.model_lines(session, text, after)
    more = len(lines) > models.LINES
    lines = lines[: models.LINES]
    if wants_json(request):
        return as_json({"models": lines, "next": lines[-1].name if more else None})
    return html(request, "models.html", models=lines, text=text, more=more)


@router.get("/models/{ref:path}")
def model(request: Request, ref: str, session: Reading) -> Response:
    """One model: where it stands, by dataset; what was bought and what is predicted."""
    refuse_hidden(ref, "model")
    name = ref.removesuffix(".json") if ref.endswith(".json") else ref
    page = models.model_page(session, name)
    own = {method for _, method in page.methods}
    names = session.exec(select(Benchmark.name).order_by(Benchmark.name)).all()
    boards = [request.app.state.boards.get(session, benchmark) for benchmark in names]
    found = [(board, row) for board in boards for row in board.rows if row.method in own]
    shown = [
        models.standing(session, request.app.state.context, board, row) for board, row in found[:STANDINGS]
    ]
    if wants_json(request):
        return as_json({**vars(page), "standings": shown, "further": len(found) - len(shown)})
    curves = [_history_curve(s) for s in shown]
    axis = charts.bar_axis([row for _, row in found]) if found else None
    bars = [charts.bar_of(s.row, axis) if axis else None for s in shown]
    return html(
        request,
        "model.html",
        page=page,
        standings=list(zip(shown, curves, bars, strict=True)),
        further=len(found) - len(shown),
    )


def _history_curve(standing: models.Standing) -> charts.Curve | None:
    if len(standing.history) < 2:
        return None
    return charts.curve_of([(p.acquired, p.low, p.score, p.high) for p in standing.history])


@router.get("/compare")
@router.get("/compare.json")
def comparison(request: Request, session: Reading) -> Response:
    """Two models of a benchmark by their paired difference; without two names, a form that asks for them."""
    query = request.query_params
    benchmark = query.get("benchmark", "")
    refuse_hidden(benchmark, "benchmark")
    board = request.app.state.boards.get(session, benchmark)
    named = [name for name in (*query.getlist("m"), query.get("a", ""), query.get("b", "")) if name]
    for name in named:
        refuse_hidden(name, "model")
    found = compare(session, board, named[0], named[1]) if len(named) == 2 else None
    if wants_json(request):
        if found is None:
            raise UsageError(
                "two models are needed", "name them: /compare.json?benchmark=NAME&m=FIRST&m=SECOND"
            )
        return as_json(found)
    names = [row.method for row in board.rows] if len(board.rows) <= CHOICES else []
    drawn = charts.differences_of(found) if found else None
    return html(request, "compare.html", board=board, named=named, names=names, comparison=found, drawn=drawn)


@router.get("/prompts")
@router.get("/prompts.json")
def prompt_map(request: Request, session: Reading) -> Response:
    """How hard a benchmark's prompts are and how well they tell models apart; prompts without a score."""
    name = request.query_params.get("benchmark", "")
    refuse_hidden(name, "benchmark")
    state = prompts.map_state(session, name)
    cache = request.app.state.settings.cache_dir
    page = request.app.state.maps.get(name, state, lambda: prompts.prompt_map(session, name, cache))
    if wants_json(request):
        return as_json(page)
    return html(request, "prompts.html", page=page, drawn=charts.map_of(page.cells))


@router.get("/prompts/{ref}")
def prompt(request: Request, ref: str, session: Reading) -> Response:
    """One prompt: its text, and what was answered."""
    page = prompts.prompt_page(session, number(ref, "prompt", "benchmarks"))
    return as_json(page) if wants_json(request) else html(request, "prompt.html", page=page)


@router.get("/spend")
@router.get("/spend.json")
def spend(request: Request, session: Reading) -> Response:
    """What was spent on what, and the caps."""
    state = spending.spend_state(session)
    page = request.app.state.spending.get("", state, lambda: spending.spend_page(session))
    if wants_json(request):
        return as_json(page)
    return html(request, "spend.html", page=page, address=_address)


def _address(link: str) -> str:
    """Where a line of the spend page leads."""
    return f"/benchmarks/{quote(link[10:])}" if link.startswith("benchmark:") else link


@router.get("/errors")
@router.get("/errors.json")
def errors(request: Request, session: Reading) -> Response:
    """What failed, and why."""
    page = troubles.trouble_page(session)
    return as_json(page) if wants_json(request) else html(request, "errors.html", page=page)


@router.get("/events")
@router.get("/events.json")
def events(request: Request, session: Reading) -> Response:
    """The newest events, and the watchers."""
    lines, watchers = views.event_lines(session), troubles.watcher_lines(session)
    if wants_json(request):
        return as_json({"events": lines, "watchers": watchers})
    return html(request, "events.html", events=lines, watchers=watchers)
