"""What the pages about prompts show: a map of their difficulty and discrimination, and single prompts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func
from sqlmodel import Session, col, select

from agent.items import ItemStatistics, item_statistics
from assay.errors import UsageError
from storage.catalog import find_benchmark
from storage.matrices import StoredMatrix, load_matrix
from storage.tables import (
    Benchmark,
    Dataset,
    EstimatorVersion,
    Method,
    Output,
    Prompt,
    Score,
    Scorer,
    utc_now,
)

__all__ = ["Cell", "PromptLine", "PromptMap", "PromptPage", "map_state", "prompt_map", "prompt_page"]

SHOWN = 15  # prompts of each list
LONGEST = 20_000  # characters of a prompt on its page
LONGEST_OUTPUT = 4_000
ANSWERS = 50  # outputs and scores on a prompt's page
COLUMNS, ROWS = 40, 20  # cells of the map


@dataclass(frozen=True)
class PromptLine:
    """A prompt with its statistics."""

    id: int
    prompt: str
    methods: int
    difficulty: float | None
    discrimination: float | None


@dataclass(frozen=True)
class Cell:
    """A place of the map and how many prompts lie there."""

    discrimination: float
    difficulty: float
    count: int


@dataclass(frozen=True)
class DatasetMap:
    """A dataset's prompts in one line."""

    dataset: str
    prompts: int
    cold: int
    difficulty: float | None
    discrimination: float | None


@dataclass(frozen=True)
class PromptMap:
    """A benchmark's prompts.

    Attributes:
        benchmark: Its name.
        prompts: Number of its prompts.
        methods: Methods with scores that the statistics come from.
        cells: Where its prompts lie.
        placed: Prompts on the map: with enough scores for a correlation.
        datasets: By dataset.
        hardest: Prompts with the greatest share of lost score.
        telling: Prompts with the greatest discrimination.
        doubtful: Prompts that better models fail.
        cold: Prompts without any score, newest first.
        cold_count: How many there are.
        built_at: When the scores were read.
    """

    benchmark: str
    prompts: int
    methods: int
    cells: tuple[Cell, ...]
    placed: int
    datasets: tuple[DatasetMap, ...]
    hardest: tuple[PromptLine, ...]
    telling: tuple[PromptLine, ...]
    doubtful: tuple[PromptLine, ...]
    cold: tuple[PromptLine, ...]
    cold_count: int
    built_at: datetime


@dataclass(frozen=True)
class Answer:
    """What a method answered, and its score."""

    method: str
    score: float | None
    origin: str
    output: str | None
    finish_reason: str


@dataclass(frozen=True)
class PromptPage:
    """One prompt with its answers."""

    id: int
    benchmark: str
    dataset: str
    key: str
    text: str
    length: int
    fields: dict[str, Any]
    scorer: str
    methods: int
    mean_score: float | None
    answers: tuple[Answer, ...]


def map_state(session: Session, name: str) -> tuple[Any, ...]:
    """Changes with the benchmark's prompts, methods and estimator versions.

    Not with every bought score: reading millions of scores anew for one more would not move the map.
    """
    benchmark = find_benchmark(session, name)
    version = select(func.max(EstimatorVersion.id)).where(EstimatorVersion.benchmark_id == benchmark.id)
    methods = select(func.max(Method.id))
    newest = session.exec(version).one()
    some = benchmark.revision > 0
    return benchmark.id, benchmark.prompts_revision, newest, session.exec(methods).one(), some


def prompt_map(session: Session, name: str, cache: Path) -> PromptMap:
    """The map of a benchmark.

    Raises:
        UsageError: There is no such benchmark.
        BadInputError: It has no prompts.
    """
    stored = load_matrix(session, find_benchmark(session, name), cache)
    items = item_statistics(stored.matrix.values)
    cold = np.flatnonzero(items.counts == 0)
    placed = np.flatnonzero(~np.isnan(items.discrimination))
    return PromptMap(
        benchmark=name,
        prompts=stored.columns.n_prompts,
        methods=len(stored.method_pks),
        cells=tuple(_cells(items, placed)),
        placed=len(placed),
        datasets=tuple(_datasets(stored, items)),
        hardest=_lines(stored, items, _top(-items.difficulty)),
        telling=_lines(stored, items, _top(-items.discrimination)),
        doubtful=_lines(
            stored, items, _top(np.where(items.discrimination < 0, items.discrimination, np.nan))
        ),
        cold=_lines(stored, items, cold[::-1][:SHOWN]),
        cold_count=len(cold),
        built_at=utc_now(),
    )


def _top(values: NDArray[np.float64]) -> NDArray[np.intp]:
    order = np.argsort(values, kind="stable")  # NaN comes last
    return order[: min(SHOWN, int((~np.isnan(values)).sum()))]


def _lines(stored: StoredMatrix, items: ItemStatistics, at: NDArray[np.intp]) -> tuple[PromptLine, ...]:
    columns = stored.columns
    return tuple(
        PromptLine(
            id=int(columns.prompt_pks[j]),
            prompt=f"{columns.datasets[columns.dataset_index[j]]}/{columns.prompt_keys[j]}",
            methods=int(items.counts[j]),
            difficulty=_or_none(items.difficulty[j]),
            discrimination=_or_none(items.discrimination[j]),
        )
        for j in at
    )


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _cells(items: ItemStatistics, placed: NDArray[np.intp]) -> list[Cell]:
    """Counts on a grid, so that a map of twelve thousand prompts stays small."""
    x = np.floor((items.discrimination[placed] + 1) / 2 * COLUMNS).clip(0, COLUMNS - 1).astype(int)
    y = np.floor(items.difficulty[placed] * ROWS).clip(0, ROWS - 1).astype(int)
    places, counts = np.unique(np.stack([x, y], axis=1), axis=0, return_counts=True)
    return [
        Cell(float((i + 0.5) / COLUMNS * 2 - 1), float((j + 0.5) / ROWS), int(count))
        for (i, j), count in zip(places, counts, strict=True)
    ]


def _datasets(stored: StoredMatrix, items: ItemStatistics) -> list[DatasetMap]:
    lines = []
    for d, name in enumerate(stored.columns.datasets):
        inside = stored.columns.dataset_index == d
        lines.append(
            DatasetMap(
                dataset=name,
                prompts=int(inside.sum()),
                cold=int((items.counts[inside] == 0).sum()),
                difficulty=_mean(items.difficulty[inside]),
                discrimination=_mean(items.discrimination[inside]),
            )
        )
    return lines


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def prompt_page(session: Session, prompt_id: int) -> PromptPage:
    """A prompt with its newest answers.

    Raises:
        UsageError: There is no such prompt.
    """
    query: Any = (
        select(  # type: ignore[call-overload]
            Benchmark.name,
            Dataset,
            Scorer.name,
            Prompt.key,
            func.substr(Prompt.text, 1, LONGEST),
            func.length(Prompt.text),
            Prompt.fields,
        )
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .join(Benchmark, col(Benchmark.id) == col(Dataset.benchmark_id))
        .join(Scorer, col(Scorer.id) == col(Dataset.scorer_id))
        .where(Prompt.id == prompt_id)
    )
    found = session.exec(query).first()
    if found is None:
        raise UsageError(f"there is no prompt {prompt_id}", "see the list of benchmarks")
    benchmark, dataset, scorer, key, text, length, fields = found
    answers = _answers(session, dataset, prompt_id)
    scores = [answer.score for answer in answers if answer.score is not None]
    return PromptPage(
        id=prompt_id,
        benchmark=benchmark,
        dataset=dataset.name,
        key=key,
        text=text,
        length=length,
        fields=fields,
        scorer=scorer,
        methods=len(answers),
        mean_score=sum(scores) / len(scores) if scores else None,
        answers=tuple(answers[:ANSWERS]),
    )


def _answers(session: Session, dataset: Dataset, prompt_id: int) -> list[Answer]:
    """Outputs first, then scores without one; the key leads with the method, so each is one look-up."""
    excerpt = func.substr(Output.text, 1, LONGEST_OUTPUT)
    query: Any = (
        select(Method.name, Score.value, Score.origin, excerpt, Output.finish_reason)  # type: ignore[call-overload]
        .join(
            Score,
            (col(Score.method_id) == col(Method.id))
            & (col(Score.dataset_id) == dataset.id)
            & (col(Score.scorer_id) == dataset.scorer_id)
            & (col(Score.prompt_id) == prompt_id),
            isouter=True,
        )
        .join(
            Output,
            (col(Output.method_id) == col(Method.id)) & (col(Output.prompt_id) == prompt_id),
            isouter=True,
        )
        .where(col(Score.value).is_not(None) | col(Output.id).is_not(None))
        .order_by(col(Output.id).desc().nulls_last(), col(Method.id))
    )
    return [
        Answer(method, score, origin or "", output, finish or "")
        for method, score, origin, output, finish in session.exec(query).all()
    ]
