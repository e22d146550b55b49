"""Taking in models and prompts from files: checked whole before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from assay.errors import BadInputError
from assay.matrix import ScoreType
from assay.specs import DatasetSpec, ModelSpec, PromptSpec, parse_dataset, parse_prompt, read_mapping
from storage import catalog
from storage.events import emit
from storage.tables import Dataset, Prompt, Scorer
from workers.backends import BACKENDS
from workers.judges import JUDGES, is_judge, judge_name, pin
from workers.prices import price_of
from workers.scorers import SCORERS
from workers.work import spec_of

__all__ = [
    "PROMPT_SUFFIXES",
    "AddedPrompts",
    "Scoring",
    "add_prompt_file",
    "add_prompts_like",
    "check_model",
    "pinned",
]

PROMPT_SUFFIXES = (".jsonl", ".toml", ".yaml", ".yml", ".json")


#: Backends whose description can be checked on any machine: no key is read, and no file.
LOCAL = ("command", "transformers")


@dataclass(frozen=True)
class AddedPrompts:
    """What adding a file of prompts did."""

    benchmark: str
    added: int
    known: int
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class Scoring:
    """How datasets are to be scored that nobody described: a scorer and its parameters."""

    scorer: str
    params: dict[str, Any] = field(default_factory=dict)


def check_model(spec: ModelSpec) -> None:
    """Refuse a model that could not be called or charged later.

    Raises:
        UsageError: The backend is unknown.
        UnknownPriceError: Its price is not known.
    """
    backend = BACKENDS.get(spec.backend)
    price_of(spec)
    if spec.backend in LOCAL:
        backend(spec)


def add_prompt_file(
    session: Session, path: Path, benchmark_name: str, scoring: Scoring | None = None
) -> AddedPrompts:
    """Add the prompts of a file to a benchmark, made where there is none; all of them or none.

    `scoring` is for datasets that are new and that the file does not describe.

    A JSON-lines file holds one prompt a line. A TOML, YAML or JSON file holds `prompts` and may hold
    `benchmark` (its name) and `datasets` (name, weight, score_type, scorer, scorer_params).

    Raises:
        BadInputError: A line or entry is wrong, or an id stands for two texts.
        UsageError: A scorer is unknown.
    """
    if path.suffix == ".jsonl":
        return add_prompts(session, benchmark_name, [], list(_lines(path)), scoring)
    return add_prompts(session, *_description(path, benchmark_name), scoring)


def add_prompts_like(session: Session, name: str, other: str, scoring: Scoring) -> AddedPrompts:
    """Add the prompts of another benchmark, scored otherwise: what was answered there is not bought again.

    Raises:
        UsageError: There is no such benchmark, or the scorer cannot work.
    """
    found = catalog.find_benchmark(session, other)
    rows = session.exec(
        select(Prompt, Dataset)
        .where(Prompt.dataset_id == Dataset.id, Dataset.benchmark_id == found.id)
        .order_by(col(Prompt.id))
    ).all()
    weights = {dataset.name: dataset.weight for _, dataset in rows}
    datasets = [
        DatasetSpec(name=part, weight=weight, scorer=scoring.scorer, scorer_params=scoring.params)
        for part, weight in weights.items()
    ]
    return add_prompts(session, name, datasets, [_again(prompt, dataset.name) for prompt, dataset in rows])


def _again(prompt: Prompt, dataset: str) -> PromptSpec:
    """The description that the prompt was made from: its content, and so its hash, stays the same."""
    fields = dict(prompt.fields)
    named = {name: fields.pop(name) for name in ("target", "choices") if name in fields}
    return PromptSpec(id=prompt.key, dataset=dataset, text=prompt.text, fields=fields, **named)


def add_prompts(
    session: Session,
    name: str,
    datasets: list[DatasetSpec],
    prompts: list[PromptSpec],
    scoring: Scoring | None = None,
) -> AddedPrompts:
    """Add datasets and prompts to a benchmark; announces prompts.added where any is new."""
    benchmark, _ = catalog.add_benchmark(session, name)
    described = {spec.name: spec for spec in datasets}
    by_dataset: dict[str, list[PromptSpec]] = {spec.name: [] for spec in datasets}
    for prompt in prompts:
        by_dataset.setdefault(prompt.dataset, []).append(prompt)
    added = known = 0
    for dataset_name, members in by_dataset.items():
        spec = described.get(dataset_name) or _dataset_of(
            session, benchmark.id, dataset_name, members, scoring
        )
        dataset = catalog.add_dataset(session, benchmark, pinned(session, spec))
        change = catalog.add_prompts(session, dataset, members)
        added, known = added + change.added, known + change.known
    if added:
        revision = catalog.bump_prompts_revision(session, benchmark)
        emit(
            session,
            "prompts.added",
            {
                "benchmark_id": benchmark.id,
                "benchmark": name,
                "prompts_revision": revision,
                "added": added,
            },
        )
    return AddedPrompts(name, added, known, tuple(by_dataset))


def pinned(session: Session, spec: DatasetSpec) -> DatasetSpec:
    """The dataset with a scorer that is known to work; a judge with all that makes it this instrument.

    A dataset that states no score type takes it from its scorer: real where that gives grades.

    Raises:
        UsageError: The scorer is unknown, or its judge is not registered.
        BadInputError: A parameter is unknown or wrong.
        UnknownPriceError: The judge's price is not known.
    """
    if not is_judge(spec.scorer):
        _try(spec)
        return _typed(spec, graded=bool(getattr(SCORERS.get(spec.scorer), "graded", False)))
    model = spec_of(catalog.find_model(session, judge_name(spec.scorer_params, spec.scorer)))
    check_model(model)
    params = pin(spec.scorer, spec.scorer_params, model)
    return _typed(spec.model_copy(update={"scorer_params": params}), graded=True)


def _typed(spec: DatasetSpec, *, graded: bool) -> DatasetSpec:
    if "score_type" in spec.model_fields_set or not graded:
        return spec
    return spec.model_copy(update={"score_type": ScoreType.REAL})


def _try(spec: DatasetSpec) -> None:
    if spec.scorer.startswith("judge"):  # the error shall name the judges
        JUDGES.get(spec.scorer)
    try:
        SCORERS.get(spec.scorer)(**spec.scorer_params)
    except TypeError as error:
        problem = str(error).partition(") ")[2] or str(error)
        raise BadInputError(f"dataset '{spec.name}', scorer '{spec.scorer}': {problem}") from None


def _dataset_of(
    session: Session,
    benchmark_id: int | None,
    name: str,
    prompts: list[PromptSpec],
    scoring: Scoring | None,
) -> DatasetSpec:
    """The dataset as it is stored; a new one is scored as asked for, else by its prompts' form."""
    stored = session.exec(
        select(Dataset, Scorer)
        .where(Dataset.scorer_id == Scorer.id)
        .where(Dataset.benchmark_id == benchmark_id, Dataset.name == name)
    ).first()
    if stored is None and scoring is not None:
        return DatasetSpec(name=name, scorer=scoring.scorer, scorer_params=scoring.params)
    if stored is None:
        choices = bool(prompts) and all(prompt.choices for prompt in prompts)
        return DatasetSpec(name=name, scorer="multiple-choice" if choices else "exact-match")
    dataset, scorer = stored
    return DatasetSpec(
        name=name,
        weight=dataset.weight,
        score_type=ScoreType(dataset.score_type),
        scorer=scorer.name,
        scorer_params=scorer.params,
    )


def _lines(path: Path) -> Iterator[PromptSpec]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path.name} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield parse_prompt(_object(line, f"{path.name}, line {number}"), f"{path.name}, line {number}")


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise BadInputError(f"{place}: not JSON: {error}", "write one JSON object per line") from None
    if not isinstance(data, dict):
        raise BadInputError(f"{place}: expected a JSON object", "write one JSON object per line")
    return data


def _description(path: Path, benchmark_name: str) -> tuple[str, list[DatasetSpec], list[PromptSpec]]:
    data = read_mapping(path)
    unknown = sorted(set(data) - {"benchmark", "datasets", "prompts"})
    if unknown:
        raise BadInputError(
            f"{path.name}: unknown key '{unknown[0]}'", "known keys: benchmark, datasets, prompts"
        )
    name = data.get("benchmark", benchmark_name)
    if not isinstance(name, str) or not name:
        raise BadInputError(f"{path.name}: benchmark must be a name, got {name!r}", "put it in quotes")
    for key in ("datasets", "prompts"):
        if not isinstance(data.get(key, []), list):
            raise BadInputError(f"{path.name}: {key} must be a list", f"write one [[{key}]] each, or a list")
    datasets = [
        parse_dataset(entry, f"{path.name}, dataset {i}")
        for i, entry in enumerate(data.get("datasets", []), 1)
    ]
    prompts = [
        parse_prompt(entry, f"{path.name}, prompt {i}") for i, entry in enumerate(data.get("prompts", []), 1)
    ]
    return name, datasets, prompts
