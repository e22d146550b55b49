"""The tables. Money is integer micro-dollars; times are timezone-aware UTC.

A table row says what is true; whatever can be recomputed (matrices, artifacts on disk) is a cache of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Index,
    LargeBinary,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlmodel import Field, SQLModel

__all__ = [
    "ApiToken",
    "Artifact",
    "Attempt",
    "Benchmark",
    "Budget",
    "Dataset",
    "Embedding",
    "Endpoint",
    "Estimate",
    "EstimatorVersion",
    "Event",
    "Job",
    "JobState",
    "LedgerEntry",
    "LedgerState",
    "Method",
    "Model",
    "Notification",
    "NotificationState",
    "Origin",
    "Output",
    "Preference",
    "Prompt",
    "Quantile",
    "Score",
    "Scorer",
    "SheetRow",
    "Study",
    "StudyMethod",
    "StudyState",
    "Template",
    "VersionState",
    "WatchedItem",
    "safe_text",
    "utc_now",
]


def utc_now() -> datetime:
    """The current time, timezone-aware."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """Timezone-aware UTC on every database (SQLite has no time zones of its own)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times, store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"naive time {value} where a timezone-aware one is needed")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class SafeText(TypeDecorator[str]):
    """Any text a model may answer: what a database refuses (NUL, half a surrogate pair) becomes U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what cannot be stored."""
        return None if value is None else safe_text(value)


def safe_text(text: str) -> str:
    """The text as the database keeps it."""
    clean = text.replace("\x00", "\ufffd")
    try:
        clean.encode()
    except UnicodeEncodeError:  # half a surrogate pair, as JSON escapes can spell it
        return clean.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return clean


def _time(*, null: bool = False, index: bool = False) -> Any:
    default = {} if null else {"default_factory": utc_now}
    return Field(sa_column=Column(UtcDateTime(), nullable=null, index=index), **default)  # type: ignore[call-overload]


def _json() -> Any:
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


def _list() -> Any:
    return Field(default_factory=list, sa_column=Column(JSON, nullable=False))


def _text(default: str = "") -> Any:
    return Field(default=default, sa_column=Column(SafeText(), nullable=False))


def _amount() -> Any:
    return Field(default=0, sa_column=Column(BigInteger, nullable=False))


# --- what is evaluated -------------------------------------------------------------------------------------


class Model(SQLModel, table=True):
    """Something that answers prompts: an endpoint and a model name, or local weights."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    backend: str
    spec: dict[str, Any] = _json()  # endpoint, parameters, prices; never a secret
    attributes: dict[str, Any] = _json()  # free columns: family, parameters_b, ...
    created_at: datetime = _time()
    retired_at: datetime | None = _time(null=True)


class Template(SQLModel, table=True):
    """How a prompt is put to a model; `{field}` names a field of the prompt."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    text: str = _text()
    engine: str = "format"
    created_at: datetime = _time()


class Method(SQLModel, table=True):
    """Model + template + decoding parameters: a row of the score matrix."""

    __table_args__ = (UniqueConstraint("model_id", "template_id", "parameters_hash"),)

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    model_id: int = Field(foreign_key="model.id")
    template_id: int = Field(foreign_key="template.id")
    parameters: dict[str, Any] = _json()
    parameters_hash: str = ""
    created_at: datetime = _time()


class Benchmark(SQLModel, table=True):
    """A named set of datasets. `revision` rises with every stored score, `prompts_revision` with prompts."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    revision: int = 0
    prompts_revision: int = 0
    ranking: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))  # last announced
    created_at: datetime = _time()


class Scorer(SQLModel, table=True):
    """A pinned way to turn an output into a score: name and parameters are its identity."""

    id: int | None = Field(default=None, primary_key=True)
    name: str
    params: dict[str, Any] = _json()
    identity: str = Field(unique=True)


class Dataset(SQLModel, table=True):
    """A part of a benchmark with one score type and one scorer."""

    __table_args__ = (UniqueConstraint("benchmark_id", "name"),)

    id: int | None = Field(default=None, primary_key=True)
    benchmark_id: int = Field(foreign_key="benchmark.id")
    name: str
    weight: float = 1.0
    score_type: str = "binary"
    scorer_id: int = Field(foreign_key="scorer.id")


class Prompt(SQLModel, table=True):
    """A column of the score matrix. `key` is the given id, else a hash of the content."""

    __table_args__ = (UniqueConstraint("dataset_id", "key"),)

    id: int | None = Field(default=None, primary_key=True)
    dataset_id: int = Field(foreign_key="dataset.id")
    key: str
    content_hash: str = Field(index=True)  # the same content in another dataset has the same answers
    text: str = _text()
    fields: dict[str, Any] = _json()  # target, choices and whatever a template or scorer reads
    created_at: datetime = _time()


class Embedding(SQLModel, table=True):
    """A text's vector under one encoder, float32, little-endian."""

    content_hash: str = Field(primary_key=True)
    encoder: str = Field(primary_key=True)
    vector: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


# --- what was bought and imported --------------------------------------------------------------------------


class Origin(StrEnum):
    """Where a score came from; predictions are never scores."""

    ACQUIRED = "acquired"
    IMPORTED = "imported"


class Output(SQLModel, table=True):
    """A method's answer to a prompt, bought once and reused by every scorer and study."""

    __table_args__ = (UniqueConstraint("method_id", "prompt_id"),)

    id: int | None = Field(default=None, primary_key=True)
    method_id: int = Field(foreign_key="method.id")
    prompt_id: int = Field(foreign_key="prompt.id")
    text: str = _text()
    finish_reason: str = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    latency_ms: float = 0.0
    details: dict[str, Any] = _json()
    created_at: datetime = _time()


class Score(SQLModel, table=True):
    """Value of (method, prompt) under a scorer.

    The key starts with dataset, scorer and method, so that a dataset's matrix and a method's row are each one
    contiguous range of the table. There are no foreign keys: checking three of them on each of millions of
    imported rows costs more than the import; the importers look every id up first.
    """

    __table_args__ = {"sqlite_with_rowid": False}

    dataset_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    scorer_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    method_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    prompt_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    value: float
    origin: str
    job_id: int | None = None


class Preference(SQLModel, table=True):
    """A judge's verdict between two methods on a prompt: 1 = A, 0 = B, 0.5 = tie."""

    __table_args__ = (UniqueConstraint("method_a_id", "method_b_id", "prompt_id", "scorer_id"),)

    id: int | None = Field(default=None, primary_key=True)
    method_a_id: int = Field(foreign_key="method.id")
    method_b_id: int = Field(foreign_key="method.id")
    prompt_id: int = Field(foreign_key="prompt.id")
    scorer_id: int = Field(foreign_key="scorer.id")
    value: float
    origin: str
    details: dict[str, Any] = _json()
    created_at: datetime = _time()


class SheetRow(SQLModel, table=True):
    """A pair of answers that people are asked about; its token is all that the sheet shows of it."""

    __table_args__ = (UniqueConstraint("study_id", "method_a_id", "method_b_id", "prompt_id"),)

    token: str = Field(primary_key=True)
    study_id: int = Field(foreign_key="study.id")
    method_a_id: int = Field(foreign_key="method.id")
    method_b_id: int = Field(foreign_key="method.id")
    prompt_id: int = Field(foreign_key="prompt.id")
    a_first: bool
    skipped: bool = False  # somebody saw it and gave no verdict
    created_at: datetime = _time()


# --- the work ----------------------------------------------------------------------------------------------


class StudyState(StrEnum):
    """waiting -> running -> done; paused and running swap; cancelled and failed are final."""

    WAITING = "waiting"  # for its estimator to be fitted
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Study(SQLModel, table=True):
    """One piece of evaluation work: objective, policy, estimator, budget and stopping rule."""

    id: int | None = Field(default=None, primary_key=True)
    objective: str = "estimate"
    benchmark_id: int = Field(foreign_key="benchmark.id", index=True)
    policy: str
    policy_params: dict[str, Any] = _json()
    estimator: str
    estimator_params: dict[str, Any] = _json()
    version_id: int | None = Field(default=None, foreign_key="estimatorversion.id")
    seed: int = 0
    batch_size: int = 10
    level: float = 0.95
    max_prompts: int | None = None
    until_width: float | None = None
    until_confidence: float | None = None  # objectives best and compare: probability of being the best
    quantiles: list[float] = _list()  # objective distribution: quantiles asked for
    templates: list[str] = _list()  # objective distribution: names or patterns; what matches later joins
    scorer_id: int | None = Field(default=None, foreign_key="scorer.id")  # objective compare: the judge
    findings: dict[str, Any] = _json()  # objective compare: what the last step made of the verdicts
    state: str = Field(default=StudyState.WAITING, index=True)
    reason: str = ""
    waits_budget_id: int | None = None  # paused until this budget has room again
    step: int = 0  # rises with every advance: the optimistic lock of two agents
    trigger: str | None = Field(default=None, unique=True)  # makes an event create its study once
    created_at: datetime = _time()
    finished_at: datetime | None = _time(null=True)


class StudyMethod(SQLModel, table=True):
    """A row of a study."""

    study_id: int = Field(foreign_key="study.id", primary_key=True)
    method_id: int = Field(foreign_key="method.id", primary_key=True, index=True)


class JobState(StrEnum):
    """queued -> leased -> done or parked; leased falls back to queued when its lease ends or a try fails."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    PARKED = "parked"
    CANCELLED = "cancelled"


class Job(SQLModel, table=True):
    """One inference or judge call to do, and why it was chosen."""

    __table_args__ = (
        # One open job per cell (or pair), whichever study wants it: nothing is asked for twice at once.
        Index(
            "one_open_job_per_cell",
            "method_id",
            "prompt_id",
            "scorer_id",
            "other_method_id",
            unique=True,
            sqlite_where=Column("state").in_(["queued", "leased"]),
            postgresql_where=Column("state").in_(["queued", "leased"]),
        ),
        Index("jobs_by_study", "study_id", "state"),
        Index("jobs_by_state", "state", "lease_until"),
    )

    id: int | None = Field(default=None, primary_key=True)
    study_id: int = Field(foreign_key="study.id")
    method_id: int = Field(foreign_key="method.id")
    prompt_id: int = Field(foreign_key="prompt.id")
    scorer_id: int = Field(foreign_key="scorer.id")
    other_method_id: int = 0  # in a comparison the method B, else 0
    kind: str = "inference"
    state: str = JobState.QUEUED
    status: str = ""  # what became of the last try, a word of assay.statuses
    reason: str = ""
    attempts: int = 0
    lease_owner: str | None = None
    lease_until: datetime | None = _time(null=True)
    not_before: datetime | None = _time(null=True)
    dispatched_at: datetime | None = _time(null=True)
    step: int = 0
    gain: float | None = None
    probability: float | None = None
    expected_cost: int = _amount()
    details: dict[str, Any] = _json()  # of a judge's job: its calls so far and its verdict
    bill: dict[str, Any] = _json()  # tokens, price and its source, micro-dollars; empty until billed
    created_at: datetime = _time()
    finished_at: datetime | None = _time(null=True)


class Attempt(SQLModel, table=True):
    """A try of a job that brought no score, and why."""

    id: int | None = Field(default=None, primary_key=True)
    job_id: int = Field(foreign_key="job.id", index=True)
    number: int
    status: str
    reason: str = _text()
    unsure: bool = False  # it may have been billed: it was sent, and its answer was lost
    worker: str = ""
    at: datetime = _time()


class Endpoint(SQLModel, table=True):
    """What limits and budgets of endpoints count for: base URL and name of the key, never the key."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)


class Budget(SQLModel, table=True):
    """A hard cap: spent + reserved never passes it. Units: usd (micro-dollars), calls, tokens, gpu-ms.

    Of a period other than "total", `spent` counts what was settled since `starts_at`.
    """

    __table_args__ = (UniqueConstraint("scope", "scope_id", "unit", "period"),)

    id: int | None = Field(default=None, primary_key=True)
    scope: str  # study, benchmark, endpoint, overall
    scope_id: int = 0
    endpoint: str = ""  # scope endpoint: its name
    unit: str = "usd"
    period: str = "total"  # total, month, day, hour (UTC)
    starts_at: datetime = _time()
    cap: int = _amount()
    reserved: int = _amount()
    spent: int = _amount()
    warned: int = 0  # percent of the cap that was announced


class LedgerState(StrEnum):
    """reserved -> settled or released; a released reservation may be made again."""

    RESERVED = "reserved"
    SETTLED = "settled"
    RELEASED = "released"


class LedgerEntry(SQLModel, table=True):
    """One job's reservation under one budget, and what it came to."""

    __table_args__ = (UniqueConstraint("job_id", "budget_id"),)

    id: int | None = Field(default=None, primary_key=True)
    budget_id: int = Field(foreign_key="budget.id", index=True)
    job_id: int = Field(foreign_key="job.id")
    state: str = LedgerState.RESERVED
    reserved: int = _amount()
    settled: int = _amount()
    created_at: datetime = _time()
    settled_at: datetime | None = _time(null=True)


class Event(SQLModel, table=True):
    """Something that happened, written in the same transaction as the rows that it announces."""

    id: int | None = Field(default=None, primary_key=True)
    kind: str
    payload: dict[str, Any] = _json()
    key: str | None = Field(default=None, unique=True)  # absorbs duplicates
    created_at: datetime = _time()
    handled_at: datetime | None = _time(null=True, index=True)
    error: str = ""


class NotificationState(StrEnum):
    """queued -> sent or failed; a try that fails falls back to queued, to be made again later."""

    QUEUED = "queued"
    SENT = "sent"
    FAILED = "failed"


class Notification(SQLModel, table=True):
    """A message about an event to one target, stored with the event's handling (the outbox)."""

    __table_args__ = (UniqueConstraint("event_id", "target"), Index("notifications_by_state", "state", "id"))

    id: int | None = Field(default=None, primary_key=True)
    event_id: int | None = Field(default=None, foreign_key="event.id")
    target: str
    message: dict[str, Any] = _json()
    state: str = NotificationState.QUEUED
    attempts: int = 0
    error: str = _text()
    lease_owner: str | None = None
    lease_until: datetime | None = _time(null=True)
    not_before: datetime | None = _time(null=True)
    created_at: datetime = _time()
    sent_at: datetime | None = _time(null=True)


# --- what was learned and what is shown --------------------------------------------------------------------


class VersionState(StrEnum):
    """wanted -> training -> champion, rejected or failed; a champion that is replaced retires."""

    WANTED = "wanted"
    TRAINING = "training"
    CHAMPION = "champion"
    REJECTED = "rejected"
    RETIRED = "retired"
    FAILED = "failed"


class EstimatorVersion(SQLModel, table=True):
    """A fitted estimator of a benchmark: what it learned from, how it did, where it stands.

    With a policy named, the version is that learned policy, trained to work with the estimator's champion.
    """

    id: int | None = Field(default=None, primary_key=True)
    benchmark_id: int = Field(foreign_key="benchmark.id", index=True)
    estimator: str
    policy: str = ""
    params: dict[str, Any] = _json()
    state: str = VersionState.WANTED
    parent_id: int | None = Field(default=None, foreign_key="estimatorversion.id")
    prompts_revision: int = 0
    history: dict[str, Any] = _json()  # method names, number of scores, revision
    validation: dict[str, Any] = _json()
    reason: str = ""
    attempts: int = 0
    lease_owner: str | None = None
    lease_until: datetime | None = _time(null=True)
    created_at: datetime = _time()
    trained_at: datetime | None = _time(null=True)


class Artifact(SQLModel, table=True):
    """A file of a fitted estimator; in the database, so that every machine can load it."""

    version_id: int = Field(foreign_key="estimatorversion.id", primary_key=True)
    name: str = Field(primary_key=True)
    content: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class Estimate(SQLModel, table=True):
    """What the leaderboard shows of a method, after each step of a study."""

    __table_args__ = (
        UniqueConstraint("study_id", "method_id", "step"),
        Index("estimates_by_method", "benchmark_id", "method_id"),
    )

    id: int | None = Field(default=None, primary_key=True)
    study_id: int = Field(foreign_key="study.id")
    benchmark_id: int = Field(foreign_key="benchmark.id")
    method_id: int = Field(foreign_key="method.id")
    step: int
    score: float
    std: float
    low: float
    high: float
    level: float
    interval_kind: str
    acquired: int
    total: int
    cost: int = _amount()
    probability_best: float | None = None
    version_id: int | None = Field(default=None, foreign_key="estimatorversion.id")
    created_at: datetime = _time()


class ApiToken(SQLModel, table=True):
    """A right to use the REST API; the secret itself is never stored, only its SHA-256."""

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    key: str = Field(unique=True)  # the public part, which finds the row
    digest: str
    scope: str  # read, run or admin
    created_at: datetime = _time()
    expires_at: datetime | None = _time(null=True)
    last_used_at: datetime | None = _time(null=True)
    revoked_at: datetime | None = _time(null=True)


class Quantile(SQLModel, table=True):
    """A quantile of a model's scores over the templates of a distribution study, after each of its steps."""

    __table_args__ = (
        UniqueConstraint("study_id", "step", "at"),
        Index("quantiles_by_model", "benchmark_id", "model_id"),
    )

    id: int | None = Field(default=None, primary_key=True)
    study_id: int = Field(foreign_key="study.id")
    benchmark_id: int = Field(foreign_key="benchmark.id")
    model_id: int = Field(foreign_key="model.id")
    step: int
    at: float
    value: float
    low: float
    high: float
    level: float
    interval_kind: str = "predicted"
    rows: int  # templates that it is a quantile of
    acquired: int  # cells known
    total: int
    created_at: datetime = _time()


class WatchedItem(SQLModel, table=True):
    """What a watcher saw: so that a restart neither misses nor repeats."""

    watcher: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    fingerprint: str = ""
    error: str = _text()
    seen_at: datetime = _time()
