"""Scores in bulk, as NDJSON: one JSON object a line, taken and given as a stream."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse
from sqlmodel import Session, col, select
from starlette.concurrency import run_in_threadpool

from agent.api._access import Reader, Reading, Runner
from agent.api._problems import RefusedError, responses
from agent.wire import ImportOut, Name, ScoreRow
from assay.errors import BadInputError
from storage import catalog
from storage.database import Database
from storage.importing import ImportReport, import_lines
from storage.tables import Dataset, Method, Output, Prompt, Score

__all__ = ["router"]

router = APIRouter(tags=["scores"])

NDJSON = "application/x-ndjson"
ROWS_AT_ONCE = 2000
IN_MEMORY = 8_000_000  # bytes of an import that are kept in memory; what is longer goes through a file
LONGEST_LINE = 4_000_000
EXAMPLE = '{"model": "llama-3-8b", "dataset": "capitals", "prompt_id": "fr", "score": 1.0}\n'
LINES = {NDJSON: {"schema": {"type": "string"}, "example": EXAMPLE}}


@router.get(
    "/benchmarks/{name:path}/scores",
    dependencies=Reader,
    response_class=StreamingResponse,
    responses={
        200: {"description": f"One score a line: {', '.join(ScoreRow.model_fields)}.", "content": LINES},
        **responses(401, 403, 404, 422, 429, 503),
    },
)
def export_scores(
    request: Request,
    session: Reading,
    name: str,
    method: Annotated[str | None, Query(description="Only this method's.")] = None,
    texts: Annotated[bool, Query(description="With prompts and outputs.")] = False,
) -> StreamingResponse:
    """All scores of a benchmark, in the form that the import takes. Models are named by their method."""
    benchmark = catalog.find_benchmark(session, name)
    query = _scores_query(benchmark.id or 0, texts)
    if method is not None:
        query = query.where(Method.id == catalog.find_method(session, method).id)
    return StreamingResponse(_lines(request.app.state.database, query, texts), media_type=NDJSON)


def _scores_query(benchmark_id: int, texts: bool) -> Any:
    """Scores under their dataset's own scorer, in the order of the table."""
    columns: list[Any] = [Method.name, Dataset.name, Prompt.key, Score.value]
    query: Any = select(*columns, Prompt.text, Output.text) if texts else select(*columns)  # type: ignore[call-overload]
    query = (
        query.select_from(Score)
        .join(Dataset, col(Dataset.id) == col(Score.dataset_id))
        .join(Method, col(Method.id) == col(Score.method_id))
        .join(Prompt, col(Prompt.id) == col(Score.prompt_id))
        .where(Dataset.benchmark_id == benchmark_id, Score.scorer_id == Dataset.scorer_id)
        .order_by(col(Score.dataset_id), col(Score.method_id), col(Score.prompt_id))
    )
    if not texts:
        return query
    same = (col(Output.method_id) == col(Score.method_id)) & (col(Output.prompt_id) == col(Score.prompt_id))
    return query.join(Output, same, isouter=True)


def _lines(database: Database, query: Any, texts: bool) -> Iterator[bytes]:
    names = ("model", "dataset", "prompt_id", "score", *(("prompt", "output") if texts else ()))
    with database.read() as session:
        for part in _parts(session, query):
            rows = (dict(zip(names, row, strict=True)) for row in part)
            yield "".join(json.dumps(_given(row), ensure_ascii=True) + "\n" for row in rows).encode()


def _parts(session: Session, query: Any) -> Any:
    return session.exec(query.execution_options(yield_per=ROWS_AT_ONCE)).partitions()


def _given(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value not in (None, "")}


@router.post(
    "/benchmarks/{name:path}/scores",
    dependencies=Runner,
    openapi_extra={"requestBody": {"required": True, "content": LINES}},
    responses=responses(400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
)
async def import_scores(
    request: Request,
    name: Annotated[Name, Path()],
    weighting: Annotated[
        Literal["dataset", "prompt"],
        Query(description="dataset: mean of dataset means; prompt: plain mean over prompts."),
    ] = "dataset",
) -> ImportOut:
    """Import scores that exist already, all or none; the benchmark is made where there is none.

    A line: model, dataset, prompt_id, score in [0, 1], and, where known, prompt, output, cost (US dollars).
    Known scores with the same value are passed over; a known score with another value refuses the import.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != NDJSON:
        raise RefusedError(
            415, "Wrong media type", f"scores come as {NDJSON}", f"send Content-Type: {NDJSON}"
        )
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as body:
        async for part in request.stream():
            body.write(part)
        body.seek(0)
        report = await run_in_threadpool(
            import_lines, request.app.state.database, _bounded(body), name, weighting=weighting
        )
    return _shown(report)


def _bounded(body: Any) -> Iterator[bytes]:
    number = 0
    while line := body.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise BadInputError(f"line {number} is longer than {LONGEST_LINE} bytes", "leave its texts out")
        yield line


def _shown(report: ImportReport) -> ImportOut:
    return ImportOut.model_validate(report)
