"""A typed client of the REST API.

Example:
    with Client("http://127.0.0.1:8765", token=os.environ["ASSAY_TOKEN"]) as assay:
        study = assay.create_studies(StudyIn(benchmark="geography", methods=["llama-3-8b"], max_usd=2.5))[0]
        for now in assay.follow(study.id):
            print(now.state, now.bought)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter

from agent.wire import (
    BenchmarkIn,
    BenchmarkOut,
    BudgetIn,
    BudgetOut,
    DecisionOut,
    EstimateOut,
    EventOut,
    ImportOut,
    JobOut,
    LeaderboardOut,
    ModelOut,
    Page,
    Period,
    Problem,
    PromptOut,
    PromptsAdded,
    PromptsIn,
    ResumeIn,
    RetrainIn,
    ScoreRow,
    StudyDetail,
    StudyIn,
    StudyOut,
    TemplateIn,
    TemplateOut,
    VersionOut,
    WatcherOut,
)
from assay.errors import AssayError
from assay.specs import ModelSpec

__all__ = ["ApiError", "Client"]

T = TypeVar("T", bound=BaseModel)
TIMEOUT_S = 60.0
STREAM_TIMEOUT_S = 60.0  # the server says at least every 15 seconds that it is alive


class ApiError(AssayError):
    """The service refused a request, or does not answer.

    Args:
        status: HTTP status; 0 where there was no answer.
        problem: What the service said.
    """

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.detail, problem.hint)
        self.status = status
        self.problem = problem


class Client:
    """Talks to one service; use it in a `with` block, or close it.

    Args:
        base_url: Where `assay serve` listens, such as "http://127.0.0.1:8765".
        token: A token made with `assay token create`; reading may do without.
        transport: Another way to the service, for tests.
    """

    def __init__(
        self, base_url: str, *, token: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = base_url.rstrip("/") + "/api/v1"
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, transport=transport)
        self._boards: dict[str, tuple[str, LeaderboardOut]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    # --- what is evaluated ---------------------------------------------------------------------------------

    def models(self, *, state: str = "active") -> Iterator[ModelOut]:
        """All models in a state ("active", "retired" or "all")."""
        return self._all("/models", ModelOut, {"state": state})

    def model(self, name: str) -> ModelOut:
        """A model by its name."""
        return self._get(f"/models/{_path(name)}", ModelOut)

    def add_model(self, spec: ModelSpec) -> ModelOut:
        """Register a model; the same description again changes nothing."""
        return self._send("POST", "/models", ModelOut, spec)

    def retire_model(self, name: str) -> ModelOut:
        """Take a model off the leaderboards."""
        return self._send("POST", f"/models/{_path(name)}/retire", ModelOut)

    def templates(self) -> Iterator[TemplateOut]:
        """All templates."""
        return self._all("/templates", TemplateOut)

    def template(self, name: str) -> TemplateOut:
        """A template by its name."""
        return self._get(f"/templates/{_path(name)}", TemplateOut)

    def add_template(self, template: TemplateIn) -> TemplateOut:
        """Add a template; the same text again changes nothing."""
        return self._send("POST", "/templates", TemplateOut, template)

    def benchmarks(self) -> Iterator[BenchmarkOut]:
        """All benchmarks."""
        return self._all("/benchmarks", BenchmarkOut)

    def benchmark(self, name: str) -> BenchmarkOut:
        """A benchmark by its name."""
        return self._get(f"/benchmarks/{_path(name)}", BenchmarkOut)

    def create_benchmark(self, benchmark: BenchmarkIn) -> PromptsAdded:
        """Create a benchmark."""
        return self._send("POST", "/benchmarks", PromptsAdded, benchmark)

    def prompts(self, benchmark: str) -> Iterator[PromptOut]:
        """All prompts of a benchmark."""
        return self._all(f"/benchmarks/{_path(benchmark)}/prompts", PromptOut)

    def add_prompts(self, benchmark: str, prompts: PromptsIn) -> PromptsAdded:
        """Add prompts to a benchmark."""
        return self._send("POST", f"/benchmarks/{_path(benchmark)}/prompts", PromptsAdded, prompts)

    # --- scores --------------------------------------------------------------------------------------------

    def import_scores(
        self, benchmark: str, rows: Iterable[ScoreRow], *, weighting: str = "dataset"
    ) -> ImportOut:
        """Send scores as a stream; all of them are stored, or none."""
        lines = (row.model_dump_json(exclude_none=True).encode() + b"\n" for row in rows)
        answer = self._request(
            "POST",
            f"/benchmarks/{_path(benchmark)}/scores",
            params={"weighting": weighting},
            content=lines,
            headers={"Content-Type": "application/x-ndjson"},
        )
        return ImportOut.model_validate_json(answer.content)

    def export_scores(
        self, benchmark: str, *, method: str | None = None, texts: bool = False
    ) -> Iterator[ScoreRow]:
        """Read all scores of a benchmark, as they come."""
        params = {"method": method, "texts": texts}
        for line in self._stream(f"/benchmarks/{_path(benchmark)}/scores", params):
            yield ScoreRow.model_validate_json(line)

    # --- what is known -------------------------------------------------------------------------------------

    def leaderboard(self, benchmark: str) -> LeaderboardOut:
        """The leaderboard; where it has not changed since this client's last look, it is not sent again."""
        etag, known = self._boards.get(benchmark, ("", None))
        headers = {"If-None-Match": etag} if etag else {}
        answer = self._request("GET", f"/benchmarks/{_path(benchmark)}/leaderboard", headers=headers)
        if answer.status_code == httpx.codes.NOT_MODIFIED and known is not None:
            return known
        board = LeaderboardOut.model_validate_json(answer.content)
        self._boards[benchmark] = (answer.headers.get("etag", ""), board)
        return board

    def estimates(self, benchmark: str, *, method: str | None = None) -> list[EstimateOut]:
        """The newest estimate of each method, or the history of one."""
        answer = self._request(
            "GET", f"/benchmarks/{_path(benchmark)}/estimates", params=_given({"method": method})
        )
        return TypeAdapter(list[EstimateOut]).validate_json(answer.content)

    # --- studies -------------------------------------------------------------------------------------------

    def create_studies(self, study: StudyIn) -> list[StudyDetail]:
        """Order studies: one per method for the objective "estimate", else one of all methods."""
        answer = self._request("POST", "/studies", json=_body(study))
        return TypeAdapter(list[StudyDetail]).validate_json(answer.content)

    def studies(self, *, state: str | None = None, benchmark: str | None = None) -> Iterator[StudyOut]:
        """All studies, or those in a state or of a benchmark."""
        return self._all("/studies", StudyOut, {"state": state, "benchmark": benchmark})

    def study(self, study_id: int) -> StudyDetail:
        """A study by its number."""
        return self._get(f"/studies/{study_id}", StudyDetail)

    def pause(self, study_id: int) -> StudyDetail:
        """Stop asking for more."""
        return self._send("POST", f"/studies/{study_id}/pause", StudyDetail)

    def resume(self, study_id: int, limits: ResumeIn | None = None) -> StudyDetail:
        """Go on with a paused or failed study."""
        return self._send("POST", f"/studies/{study_id}/resume", StudyDetail, limits)

    def cancel(self, study_id: int) -> StudyDetail:
        """End a study for good."""
        return self._send("POST", f"/studies/{study_id}/cancel", StudyDetail)

    def decisions(self, study_id: int) -> Iterator[DecisionOut]:
        """Why each prompt was bought."""
        return self._all(f"/studies/{study_id}/decisions", DecisionOut)

    def follow(self, study_id: int, *, max_s: float = 3600) -> Iterator[StudyDetail]:
        """The study at each change, until it is over or `max_s` have passed."""
        kind = ""
        for line in self._stream(f"/studies/{study_id}/progress", {"max_s": max_s}):
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind == "progress":
                yield StudyDetail.model_validate_json(value)

    # --- records -------------------------------------------------------------------------------------------

    def jobs(self, *, study_id: int | None = None, state: str | None = None) -> Iterator[JobOut]:
        """All jobs, or those of a study or in a state."""
        return self._all("/jobs", JobOut, {"study_id": study_id, "state": state})

    def job(self, job_id: int) -> JobOut:
        """A job by its number."""
        return self._get(f"/jobs/{job_id}", JobOut)

    def budgets(self, *, scope: str | None = None) -> Iterator[BudgetOut]:
        """All caps, or those of a scope."""
        return self._all("/budgets", BudgetOut, {"scope": scope})

    def set_budget(
        self, scope: str, scope_id: int, unit: str, cap: int, *, period: Period = "total"
    ) -> BudgetOut:
        """Set a cap (usd: in micro-dollars), in all or per period."""
        path = f"/budgets/{_path(scope)}/{scope_id}/{_path(unit)}"
        return self._send("PUT", path, BudgetOut, BudgetIn(cap=cap, period=period))

    def events(self, *, after: int | None = None, kind: str | None = None) -> Iterator[EventOut]:
        """All events, or those after one, or of a kind."""
        return self._all("/events", EventOut, {"after": after, "kind": kind})

    def versions(self, *, benchmark: str | None = None) -> Iterator[VersionOut]:
        """All versions of fitted estimators, or a benchmark's."""
        return self._all("/estimators", VersionOut, {"benchmark": benchmark})

    def version(self, version_id: int) -> VersionOut:
        """A version by its number."""
        return self._get(f"/estimators/{version_id}", VersionOut)

    def retrain(self, benchmark: str, wanted: RetrainIn | None = None) -> VersionOut:
        """Ask for a challenger."""
        return self._send("POST", f"/benchmarks/{_path(benchmark)}/retrain", VersionOut, wanted)

    def promote(self, version_id: int) -> VersionOut:
        """Make a version the champion."""
        return self._send("POST", f"/estimators/{version_id}/promote", VersionOut)

    def watchers(self) -> list[WatcherOut]:
        """The sources that are watched, and how they are."""
        return TypeAdapter(list[WatcherOut]).validate_json(self._request("GET", "/watchers").content)

    # --- requests ------------------------------------------------------------------------------------------

    def _get(self, path: str, kind: type[T]) -> T:
        return kind.model_validate_json(self._request("GET", path).content)

    def _send(self, method: str, path: str, kind: type[T], body: BaseModel | None = None) -> T:
        given = {} if body is None else {"json": _body(body)}
        return kind.model_validate_json(self._request(method, path, **given).content)

    def _all(self, path: str, kind: type[T], params: dict[str, Any] | None = None) -> Iterator[T]:
        given = _given(params or {})
        while True:
            answer = self._request("GET", path, params=given)
            part: Page[T] = Page[kind].model_validate_json(answer.content)  # type: ignore[valid-type]
            yield from part.items
            if part.next is None:
                return
            given["after"] = part.next

    def _request(self, method: str, path: str, **given: Any) -> httpx.Response:
        answer = _reached(lambda: self._http.request(method, path, **given))
        _refuse(answer)
        return answer

    def _stream(self, path: str, params: dict[str, Any]) -> Iterator[str]:
        timeout = httpx.Timeout(TIMEOUT_S, read=STREAM_TIMEOUT_S)
        with self._http.stream("GET", path, params=_given(params), timeout=timeout) as answer:
            if answer.is_error:
                answer.read()
            _refuse(answer)
            yield from (line for line in answer.iter_lines() if line)


def _reached(call: Callable[[], httpx.Response]) -> httpx.Response:
    try:
        return call()
    except httpx.HTTPError as error:
        problem = Problem(
            type="about:blank",
            title="No answer",
            status=0,
            detail=f"the service does not answer: {type(error).__name__}",
            hint="start it with: assay serve",
        )
        raise ApiError(0, problem) from error


def _refuse(answer: httpx.Response) -> None:
    if not answer.is_error:
        return
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValueError:  # a proxy's own page
        problem = Problem(
            type="about:blank",
            title=answer.reason_phrase,
            status=answer.status_code,
            detail=f"the service answered with status {answer.status_code}",
            hint="",
        )
    raise ApiError(answer.status_code, problem)


def _path(name: str) -> str:
    return quote(name, safe="")


def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def _body(model: BaseModel) -> Any:
    return json.loads(model.model_dump_json(exclude_none=True))
