"""What users write to describe models, benchmarks and prompts: checked shapes with clear errors."""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from assay.errors import BadInputError
from assay.matrix import ScoreType

__all__ = [
    "DatasetSpec",
    "ModelSpec",
    "NotifySpec",
    "Price",
    "PromptSpec",
    "WatcherSpec",
    "content_hash",
    "parse_dataset",
    "parse_model",
    "parse_prompt",
    "read_mapping",
]


S = TypeVar("S", bound="_Spec")
LONGEST_TEXT = 10_000_000


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Free values as JSON can hold them: TOML and YAML have dates, which become text."""
    text = json.dumps(values, default=str, allow_nan=False, ensure_ascii=False)
    # Half a surrogate pair, as JSON escapes can spell it, is no character that could be sent on.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    plain: dict[str, Any] = json.loads(whole)
    return plain


def _whole(value: Any) -> Any:
    """JSON and YAML may write a whole number as 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: Numbers as numbers: true and false are none, and neither is "5".
Number = Annotated[float, Field(strict=True)]
Whole = Annotated[int, BeforeValidator(_whole), Field(strict=True)]
FreeValues = Annotated[dict[str, Any], AfterValidator(_plain)]


class _Spec(BaseModel):
    # The length makes every text be looked at: without a limit, half a surrogate pair would pass.
    model_config = ConfigDict(
        extra="forbid", protected_namespaces=(), allow_inf_nan=False, str_max_length=LONGEST_TEXT
    )


class Price(_Spec):
    """US dollars per million tokens, and per call; a local model is `{"free": true}`, never just left out."""

    input_per_million: Number = Field(default=0.0, ge=0)
    output_per_million: Number = Field(default=0.0, ge=0)
    per_call: Number = Field(default=0.0, ge=0)
    free: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        paid = self.input_per_million + self.output_per_million + self.per_call
        if not paid and not self.free:
            raise ValueError("all prices are 0: write free = true if calls cost nothing")
        if paid and self.free:
            raise ValueError("a price and free = true contradict each other")
        return self

    def micro_dollars(self, input_tokens: int, output_tokens: int) -> int:
        """Cost of one call, in whole micro-dollars, rounded up."""
        # Dollars per million tokens are micro-dollars per token.
        exact = (
            input_tokens * self.input_per_million
            + output_tokens * self.output_per_million
            + self.per_call * 1e6
        )
        return int(-(-exact // 1))


class ModelSpec(_Spec):
    """A model file: what to call and how.

    Example:
        name = "falcon-7b"
        backend = "openai"
        base_url = "http://127.0.0.1:8000/v1"
        model = "tiiuae/falcon-7b"
        api_key_env = "FALCON_KEY"
        price = {input_per_million = 0.2, output_per_million = 0.6}
    """

    name: str = Field(min_length=1, max_length=200)
    backend: str = "openai"
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    matrix: str | None = None  # replay backend: folder to answer from
    row: str | None = None  # replay backend: row of the matrix, default the model's name
    latency_ms: Number = Field(default=0.0, ge=0)  # replay backend
    failure_rate: Number = Field(default=0.0, ge=0, le=1)  # replay backend
    command: list[str] | None = Field(default=None, min_length=1)  # command backend: program and arguments
    device: str = "auto"  # transformers backend: cpu, cuda, cuda:1, auto
    dtype: str = "auto"  # transformers backend: float32, bfloat16, float16, auto (as stored)
    batch_size: Whole = Field(default=8, ge=1)  # transformers backend: prompts per forward pass
    price: Price | None = None
    parameters: FreeValues = Field(default_factory=dict)
    max_tokens: Whole = Field(default=512, ge=1)
    timeout_s: Number = Field(default=60.0, gt=0)
    max_in_flight: Whole = Field(default=64, ge=1)  # these three are shared by all workers
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    benchmarks: list[str] | None = None
    attributes: FreeValues = Field(default_factory=dict)


class NotifySpec(_Spec):
    """An entry of `[[notify]]` in assay.toml: who is told what.

    Example:
        name = "ops"
        kind = "webhook"
        url = "https://hooks.example.org/assay"
        secret_env = "ASSAY_HOOK_SECRET"
    """

    name: str = Field(min_length=1, max_length=100)
    kind: str = "webhook"
    on: list[str] = Field(
        default=["study.finished", "study.failed", "rank.changed", "budget.*", "watcher.*", "endpoint.*"]
    )
    url: str | None = None
    url_env: str | None = None
    secret_env: str | None = None
    allow_private: bool = False
    smtp_host: str | None = None
    smtp_port: int | None = Field(default=None, ge=1, le=65535)
    smtp_tls: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str | None = None
    password_env: str | None = None
    sender: str | None = None
    to: list[str] = Field(default_factory=list)
    options: FreeValues = Field(default_factory=dict)  # for notifiers of third parties


class PromptSpec(_Spec):
    """One line of a prompt file; without an id, the content's hash is the id."""

    id: str | None = Field(default=None, max_length=200)
    dataset: str = Field(default="default", min_length=1, max_length=200)
    text: str = Field(min_length=1)
    target: str | Number | list[str] | None = None
    choices: list[str] | None = None
    fields: FreeValues = Field(default_factory=dict)

    def all_fields(self) -> dict[str, Any]:
        """Target, choices and free fields in one mapping, as stored."""
        named = {"target": self.target, "choices": self.choices}
        return {**self.fields, **{key: value for key, value in named.items() if value is not None}}


class DatasetSpec(_Spec):
    """A dataset of a benchmark: its weight, score type and scorer."""

    name: str = Field(min_length=1)
    weight: Number = Field(default=1.0, ge=0)
    score_type: ScoreType = ScoreType.BINARY
    scorer: str = "exact-match"
    scorer_params: dict[str, Any] = Field(default_factory=dict)


class WatcherSpec(_Spec):
    """A source to watch, a [[watch]] table of assay.toml.

    Example:
        [[watch]]
        kind = "openai-models"
        url = "http://127.0.0.1:8000/v1"
        match = "llama-*"
        model = {price = {free = true}, benchmarks = ["openllm"]}
    """

    kind: str
    name: str | None = Field(default=None, min_length=1, max_length=100)  # under which it remembers
    url: str | None = None
    folder: Path | None = None
    source: str | None = None  # huggingface: organisation, or owner/collection
    benchmark: str | None = None  # http-jsonl: where the prompts go
    match: str = "*"  # which names are wanted, as in a shell
    model: FreeValues = Field(default_factory=dict)  # how the new models are called, as in a model file
    api_key_env: str | None = None  # environment variable with the source's key
    webhook_secret_env: str | None = None  # mlflow: environment variable with the webhook's secret
    interval_s: Number = Field(default=60.0, gt=0)

    @property
    def label(self) -> str:
        """Its name; the kind where it has none."""
        return self.name or self.kind


def content_hash(text: str, fields: dict[str, Any]) -> str:
    """Identity of a prompt's content: SHA-256 over its text and fields."""
    content = json.dumps({"text": text, "fields": fields}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def parse_model(data: dict[str, Any], source: str) -> ModelSpec:
    """Check a model description; `source` names it in errors."""
    return _parse(ModelSpec, data, source)


def parse_dataset(data: dict[str, Any], source: str) -> DatasetSpec:
    """Check a dataset description; `source` names it in errors."""
    return _parse(DatasetSpec, data, source)


def parse_prompt(data: dict[str, Any], source: str) -> PromptSpec:
    """Check a prompt description; `source` names it in errors."""
    return _parse(PromptSpec, data, source)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a TOML, YAML or JSON file that holds one mapping.

    Raises:
        BadInputError: Not readable, not of that format, or not a mapping.
    """
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            data: Any = tomllib.loads(text)
        elif path.suffix == ".json":
            data = json.loads(text)
        else:
            data = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(
            f"{path.name} cannot be read: {reason}", "mend the file and save it again"
        ) from None
    if not isinstance(data, dict):
        raise BadInputError(f"{path.name} does not hold a mapping of keys to values")
    return data


def _parse(kind: type[S], data: dict[str, Any], source: str) -> S:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BadInputError(f"{source}: {_first_problem(error, kind)}") from None


def _first_problem(error: ValidationError, kind: type[BaseModel]) -> str:
    problems = error.errors()
    # A misspelt key says more than the missing one that it stands for.
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{where or 'the whole'}: {problem['msg']}"
    known = list(kind.model_fields) if len(problem["loc"]) == 1 else list(Price.model_fields)
    near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
    nearest = f", did you mean '{near[0]}'?" if near else ""
    return f"unknown key '{where}'{nearest} known keys: {', '.join(known)}"
