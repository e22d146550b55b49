"""Benchmarks, their prompts, leaderboards and estimates."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlmodel import col, select

from agent import registration, views
from agent.api._access import Reader, Reading, Runner
from agent.api._lists import Listing, page_of
from agent.api._problems import responses
from agent.body import Body, as_json
from agent.render import as_dict
from agent.wire import (
    BenchmarkIn,
    BenchmarkOut,
    EstimateOut,
    LeaderboardOut,
    Page,
    PromptOut,
    PromptsAdded,
    PromptsIn,
)
from assay.errors import ConflictError
from storage import catalog
from storage.tables import Benchmark, Dataset, Prompt

__all__ = ["router"]

router = APIRouter(tags=["benchmarks"])

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "As it was when the `ETag` in `If-None-Match` was given."}
}
READ = responses(401, 403, 404, 422, 429, 503)
WRITE = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)


@router.get("/benchmarks", dependencies=Reader, responses=responses(401, 403, 422, 429, 503))
def list_benchmarks(request: Request, session: Reading, cursor: Listing) -> Page[BenchmarkOut]:
    """Benchmarks with their datasets."""
    cache = request.app.state.settings.cache_dir

    def show(benchmark: Benchmark) -> BenchmarkOut:
        return BenchmarkOut.model_validate(views.benchmark_facts(session, benchmark, cache))

    return page_of(session, select(Benchmark), Benchmark.id, cursor, show, lambda found: found.id)


@router.post("/benchmarks", status_code=201, dependencies=Runner, responses=WRITE)
def create_benchmark(request: Request, wanted: BenchmarkIn) -> PromptsAdded:
    """Create a benchmark, with prompts where there are any."""
    with request.app.state.database.begin() as session:
        _, new = catalog.add_benchmark(session, wanted.name)
        if not new:
            raise ConflictError(
                f"there is a benchmark '{wanted.name}' already", "add to it: POST /benchmarks/NAME/prompts"
            )
        change = registration.add_prompts(session, wanted.name, wanted.datasets, wanted.prompts)
    return PromptsAdded.model_validate(change)


@router.get("/benchmarks/{name:path}/prompts", dependencies=Reader, responses=READ)
def list_prompts(session: Reading, name: str, cursor: Listing) -> Page[PromptOut]:
    """A benchmark's prompts."""
    benchmark = catalog.find_benchmark(session, name)
    query = (
        select(Prompt, Dataset.name)
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .where(Dataset.benchmark_id == benchmark.id)
    )

    def show(row: tuple[Prompt, str]) -> PromptOut:
        prompt, dataset = row
        return PromptOut(
            id=prompt.id or 0, key=prompt.key, dataset=dataset, text=prompt.text, fields=prompt.fields
        )

    return page_of(session, query, Prompt.id, cursor, show, lambda row: row[0].id)


@router.post("/benchmarks/{name:path}/prompts", dependencies=Runner, responses=WRITE)
def add_prompts(request: Request, name: str, wanted: PromptsIn) -> PromptsAdded:
    """Add prompts, all or none; known ones stay. The agent then refreshes the models that it evaluated."""
    with request.app.state.database.begin() as session:
        catalog.find_benchmark(session, name)
        change = registration.add_prompts(session, name, wanted.datasets, wanted.prompts)
    return PromptsAdded.model_validate(change)


@router.get(
    "/benchmarks/{name:path}/leaderboard",
    dependencies=Reader,
    response_model=LeaderboardOut,
    responses={**NOT_MODIFIED, **READ},
)
def get_leaderboard(request: Request, session: Reading, name: str) -> Response:
    """The leaderboard, with an `ETag`: the same data as the page's."""
    board = request.app.state.boards.get(session, name)
    body: Body = request.app.state.bodies.get(
        ("leaderboard", name), board.built_at, lambda: Body.of(as_json(as_dict(board)))
    )
    return body.answer(request)


@router.get(
    "/benchmarks/{name:path}/estimates",
    dependencies=Reader,
    response_model=list[EstimateOut],
    responses={**NOT_MODIFIED, **READ},
)
def list_estimates(
    request: Request,
    session: Reading,
    name: str,
    method: Annotated[str | None, Query(description="All estimates of this method, oldest first.")] = None,
) -> Response:
    """The newest estimate of each method, or the history of one; with an `ETag`."""
    benchmark = catalog.find_benchmark(session, name)
    found = views.estimate_lines(session, benchmark.id or 0, method)
    shown = [EstimateOut.model_validate(line).model_dump(mode="json") for line in found]
    return Body.of(as_json(shown)).answer(request)


@router.get("/benchmarks/{name:path}", dependencies=Reader, responses=READ)
def get_benchmark(request: Request, session: Reading, name: str) -> BenchmarkOut:
    """A benchmark by its name."""
    benchmark = catalog.find_benchmark(session, name)
    facts = views.benchmark_facts(session, benchmark, request.app.state.settings.cache_dir)
    return BenchmarkOut.model_validate(facts)
