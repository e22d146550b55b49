"""What the REST API takes and gives: the shapes that server and client share.

Amounts of money are whole micro-dollars (`cost`, `cap`) unless the name ends in `_usd`; times are UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from assay.specs import DatasetSpec, PromptSpec

__all__ = [
    "BenchmarkIn",
    "BenchmarkOut",
    "BudgetIn",
    "BudgetOut",
    "DatasetOut",
    "DecisionOut",
    "EstimateOut",
    "EventOut",
    "HookOut",
    "ImportOut",
    "JobOut",
    "LeaderboardOut",
    "LeaderboardRowOut",
    "ModelOut",
    "Page",
    "Period",
    "Problem",
    "PromptOut",
    "PromptsAdded",
    "PromptsIn",
    "ResumeIn",
    "RetrainIn",
    "ScoreRow",
    "StudyIn",
    "StudyOut",
    "TemplateIn",
    "TemplateOut",
    "VersionOut",
    "WatcherOut",
]

T = TypeVar("T")
Period = Literal["total", "month", "day", "hour"]
LARGEST_INT = 2**31 - 1


def _whole(value: Any) -> Any:
    """In JSON, 5.0 is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: Names travel through databases, paths and terminals: no control characters.
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Whole = BeforeValidator(_whole)
Count = Annotated[int, Whole, Field(ge=1, le=LARGEST_INT)]


class _In(BaseModel):
    # The length makes every text be looked at: without a limit, half a surrogate pair would pass.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, str_max_length=10_000_000)


class _Out(BaseModel):
    model_config = ConfigDict(extra="ignore", from_attributes=True)


class FieldProblem(_Out):
    """A value that is wrong."""

    where: str
    what: str


class Problem(_Out):
    """An error (RFC 9457): what was wrong, and what to do."""

    type: str
    title: str
    status: int
    detail: str
    hint: str
    errors: list[FieldProblem] = []

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Not found",
                "status": 404,
                "detail": "unknown model 'llama-4'",
                "hint": "list them with: assay model list",
                "errors": [],
            }
        }
    )


class Page(_Out, Generic[T]):
    """A part of a list; `next` is the value of `after` that gives the following part, null at the end."""

    items: list[T]
    next: int | None = None


class Health(_Out):
    """Whether the service answers, and what it lacks."""

    status: str
    database: str = ""
    hint: str = ""


# --- what is evaluated -------------------------------------------------------------------------------------


class ModelOut(_Out):
    """A model and its methods."""

    id: int
    name: str
    backend: str
    spec: dict[str, Any]
    attributes: dict[str, Any]
    state: Literal["active", "retired"]
    methods: list[str]
    created_at: datetime
    retired_at: datetime | None


class TemplateIn(_In):
    """A way to put a prompt to a model; `{field}` names a field of the prompt."""

    name: Name
    text: str = Field(min_length=1, max_length=1_000_000)

    model_config = ConfigDict(
        json_schema_extra={"example": {"name": "terse", "text": "Answer in one word.\n\n{text}"}}
    )


class TemplateOut(_Out):
    """A template."""

    id: int
    name: str
    text: str
    engine: str
    created_at: datetime


class DatasetOut(_Out):
    """A part of a benchmark."""

    name: str
    prompts: int
    weight: float
    score_type: str
    scorer: str


class BenchmarkOut(_Out):
    """A benchmark and its datasets; `revision` rises with every stored score."""

    name: str
    revision: int
    prompts: int
    methods: int
    datasets: list[DatasetOut]


class PromptsIn(_In):
    """Prompts to add, all or none; datasets describe those that are new."""

    datasets: list[DatasetSpec] = Field(default=[], max_length=1000)
    prompts: list[PromptSpec] = Field(default=[], max_length=10_000)

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "datasets": [{"name": "capitals", "scorer": "exact-match"}],
                "prompts": [
                    {"id": "fr", "dataset": "capitals", "text": "Capital of France?", "target": "Paris"}
                ],
            }
        }
    )


class BenchmarkIn(PromptsIn):
    """A benchmark to make, with its first prompts."""

    name: Name

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "geography",
                "datasets": [{"name": "capitals", "scorer": "exact-match"}],
                "prompts": [
                    {"id": "fr", "dataset": "capitals", "text": "Capital of France?", "target": "Paris"}
                ],
            }
        }
    )


class PromptsAdded(_Out):
    """What adding prompts did."""

    benchmark: str
    added: int
    known: int
    datasets: list[str]


class PromptOut(_Out):
    """A prompt with its target, choices and free fields."""

    id: int
    key: str
    dataset: str
    text: str
    fields: dict[str, Any]


class ScoreRow(_In):
    """One line of a bulk import or export (NDJSON): a score in [0, 1], and what is known of it."""

    model: str = Field(min_length=1, max_length=200)
    dataset: str = Field(min_length=1, max_length=200)
    prompt_id: str = Field(min_length=1, max_length=200)
    score: float = Field(ge=0, le=1)
    prompt: str | None = None
    output: str | None = None
    cost: float | None = Field(default=None, ge=0)


class ImportOut(_Out):
    """What an import did: rows read, skipped and why."""

    rows: int
    models: int
    models_new: int
    prompts: int
    prompts_new: int
    scores_new: int
    scores_known: int
    outputs_new: int
    skipped: int
    reasons: dict[str, int]
    notes: list[str]


# --- the work ----------------------------------------------------------------------------------------------


class StudyIn(_In):
    """A study to make; what is left out is as configured. The objective "estimate" makes one per method."""

    benchmark: Name
    methods: list[Name] = Field(min_length=1, max_length=1000)
    objective: Name = "estimate"
    policy: Name | None = None
    estimator: Name | None = None
    max_usd: float | None = Field(default=None, ge=0, le=1e9)
    max_prompts: Count | None = None
    until_width: float | None = Field(default=None, ge=0)
    until_confidence: float | None = Field(default=None, ge=0, le=1)
    batch_size: Count | None = None
    seed: Annotated[int, Whole, Field(ge=0, le=LARGEST_INT)] | None = None
    judge: Name | None = None
    templates: list[Name] = Field(default_factory=list, max_length=1000)
    quantiles: list[Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=list, max_length=99)

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "benchmark": "geography",
                "methods": ["llama-3-8b"],
                "max_usd": 2.5,
                "max_prompts": 100,
            }
        }
    )


class ResumeIn(_In):
    """Higher limits to go on with."""

    max_usd: float | None = Field(default=None, ge=0, le=1e9)
    max_prompts: Count | None = None

    model_config = ConfigDict(json_schema_extra={"example": {"max_usd": 5.0}})


class AmountOut(_Out):
    """A cap and what is used of it; usd in micro-dollars."""

    unit: str
    cap: int
    spent: int
    reserved: int


class _ScoreOut(_Out):
    """A method's score with its interval, and what it rests on."""

    method: str
    score: float
    std: float
    low: float
    high: float
    level: float
    interval_kind: str
    acquired: int
    total: int
    cost: int
    version_id: int | None


class EstimateOut(_ScoreOut):
    """What is known of a method: score, interval, share acquired, cost, estimator version."""

    study_id: int
    step: int
    probability_best: float | None
    created_at: datetime


class StudyOut(_Out):
    """A study: what it was asked, how far it is, what it found."""

    id: int
    benchmark: str
    methods: list[str]
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
    budgets: list[AmountOut]
    created_at: datetime
    finished_at: datetime | None


class StudyDetail(StudyOut):
    """A study with its newest estimates."""

    level: float
    until_width: float | None
    until_confidence: float | None
    batch_size: int
    seed: int
    comparison: dict[str, Any] = Field(default_factory=dict)
    estimates: list[EstimateOut]


class DecisionOut(_Out):
    """A prompt that a study decided to buy, why, and what came of it.

    `gain` is what the policy expected of it, `probability` that with which it was drawn (null where it was
    chosen, not drawn), `version_id` the estimator version that decided, `expected_cost` the worst case that
    was reserved and `cost` what was settled, both in micro-dollars.
    """

    job_id: int
    study_id: int
    step: int
    policy: str
    version_id: int | None
    method: str
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


class JobOut(_Out):
    """One inference or judge call."""

    id: int
    study_id: int
    method: str
    dataset: str
    prompt: str
    kind: str
    state: str
    reason: str
    attempts: int
    step: int
    expected_cost: int
    created_at: datetime
    finished_at: datetime | None


class BudgetIn(_In):
    """A cap to set: micro-dollars, calls, tokens or GPU milliseconds, in all or per period (UTC)."""

    cap: Annotated[int, Whole, Field(ge=0, le=10**15)]
    period: Period = "total"

    model_config = ConfigDict(json_schema_extra={"example": {"cap": 50_000_000, "period": "month"}})


class BudgetOut(AmountOut):
    """A cap, what it counts, and what is used of it in this period.

    `endpoint` is the endpoint's name where the scope is one, else empty; `period` is total, month, day or
    hour (UTC), the present one having begun at `starts_at`.
    """

    scope: str
    scope_id: int
    endpoint: str
    period: str
    starts_at: datetime


class EventOut(_Out):
    """Something that happened."""

    id: int
    kind: str
    payload: dict[str, Any]
    created_at: datetime
    handled_at: datetime | None
    error: str


class RetrainIn(_In):
    """A challenger to fit."""

    estimator: Name | None = None
    cold: bool = False

    model_config = ConfigDict(json_schema_extra={"example": {"estimator": "mirt"}})


class VersionOut(_Out):
    """A version of a fitted estimator: what it learned from and how it was judged."""

    id: int
    benchmark: str
    estimator: str
    state: str
    reason: str
    parent_id: int | None
    history_methods: int
    history_scores: int
    validation: dict[str, Any]
    created_at: datetime
    trained_at: datetime | None


class WatcherOut(_Out):
    """A source: whether it answers ("up", "down" or "waiting" for its first look), and what it brought.

    `refused` counts the items that could not be taken (events watcher.error say why), `failures` how often in
    a row the source did not answer; `seen_at` is when it last did.
    """

    name: str
    kind: str
    where: str
    state: Literal["up", "down", "waiting"]
    items: int
    refused: int
    failures: int
    error: str
    seen_at: datetime | None


class HookOut(_Out):
    """How many new things a webhook brought."""

    taken: int


# --- what is shown -----------------------------------------------------------------------------------------


class LeaderboardRowOut(_ScoreOut):
    """A method's place; see `agent.leaderboard.LeaderboardRow`."""

    rank: int
    rank_best: int
    rank_worst: int
    model: str
    acquired_share: float
    cost_usd: float
    estimated_at: datetime | None
    age_seconds: float | None
    estimator: str
    study_id: int | None
    study_state: str
    better_than_next: float | None
    stale: bool
    templates: int
    median: float | None
    q05: float | None
    q95: float | None


class LeaderboardOut(_Out):
    """A benchmark's leaderboard, best method first."""

    benchmark: str
    datasets: list[str]
    prompts: int
    level: float
    pending: int
    unlisted: int
    retired: int
    cost: int
    cost_usd: float
    built_at: datetime
    rows: list[LeaderboardRowOut]
