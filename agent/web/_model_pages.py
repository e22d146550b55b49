"""What the pages about models show: standing, datasets, history, and prompts bought and predicted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import and_, func
from sqlmodel import Session, col, select

from agent.context import AgentContext
from agent.leaderboard import Leaderboard, LeaderboardRow
from agent.views import EXCERPT
from assay.errors import AssayError, UsageError
from storage.catalog import find_model
from storage.matrices import BenchmarkColumns, load_rows
from storage.tables import (
    Benchmark,
    Dataset,
    Estimate,
    Job,
    JobState,
    Method,
    Model,
    Prompt,
    Score,
    StudyMethod,
)

__all__ = ["ModelLine", "ModelPage", "Standing", "model_lines", "model_page", "standing"]

log = logging.getLogger(__name__)

SHOWN = 20  # prompts of each list
LINES = 200  # models of one page


@dataclass(frozen=True)
class ModelLine:
    """A model in the list of all."""

    id: int
    name: str
    backend: str
    endpoint: str
    methods: int
    created_at: datetime
    retired_at: datetime | None


@dataclass(frozen=True)
class ModelPage:
    """A model and its methods; `benchmarks` has the names of those that it has a score on, by method."""

    model: ModelLine
    served_as: str
    attributes: dict[str, Any]
    parameters: dict[str, Any]
    price: dict[str, Any] | None
    methods: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class DatasetLine:
    """A method on one dataset; the estimate counts acquired scores as they are and predicts the others."""

    dataset: str
    prompts: int
    scored: int
    mean_scored: float | None
    estimated: float | None
    estimated_std: float | None


@dataclass(frozen=True)
class HistoryPoint:
    """A past estimate."""

    study_id: int
    step: int
    score: float
    low: float
    high: float
    acquired: int
    total: int
    cost: int
    version_id: int | None
    created_at: datetime


@dataclass(frozen=True)
class BoughtPrompt:
    """A prompt whose score was bought."""

    prompt_id: int
    prompt: str
    excerpt: str
    score: float | None
    study_id: int
    finished_at: datetime | None


@dataclass(frozen=True)
class PredictedPrompt:
    """A prompt whose score is predicted."""

    prompt_id: int
    prompt: str
    mean: float
    std: float


@dataclass(frozen=True)
class Standing:
    """A method on one benchmark."""

    benchmark: str
    method: str
    row: LeaderboardRow
    models: int
    datasets: tuple[DatasetLine, ...]
    history: tuple[HistoryPoint, ...]
    bought: tuple[BoughtPrompt, ...]
    predicted: tuple[PredictedPrompt, ...]
    version_id: int | None
    note: str


def model_lines(session: Session, text: str = "", after: str = "") -> list[ModelLine]:
    """Models by name, with a part of the name, from a name on."""
    query = (
        select(Model, func.count(col(Method.id)))
        .join(Method, col(Method.model_id) == col(Model.id), isouter=True)
        .group_by(col(Model.id))
        .order_by(col(Model.name))
        .limit(LINES + 1)
    )
    if text:
        query = query.where(col(Model.name).icontains(text, autoescape=True))
    if after:
        query = query.where(col(Model.name) > after)
    return [_line(model, count) for model, count in session.exec(query).all()]


def _line(model: Model, methods: int) -> ModelLine:
    endpoint = str(model.spec.get("base_url") or "")
    return ModelLine(
        id=int(model.id or 0),
        name=model.name,
        backend=model.backend,
        endpoint=endpoint.rpartition("@")[2] if "@" in endpoint else endpoint,
        methods=methods,
        created_at=model.created_at,
        retired_at=model.retired_at,
    )


def model_page(session: Session, name: str) -> ModelPage:
    """A model by its name, or by that of one of its methods.

    Raises:
        UsageError: There is neither.
    """
    model = _find(session, name)
    query = select(Method.id, Method.name).where(Method.model_id == model.id).order_by(col(Method.id))
    methods = tuple((int(pk or 0), method) for pk, method in session.exec(query).all())
    return ModelPage(
        model=_line(model, len(methods)),
        served_as=str(model.spec.get("model") or ""),
        attributes=model.attributes,
        parameters=model.spec.get("parameters") or {},
        price=model.spec.get("price"),
        methods=methods,
    )


def _find(session: Session, name: str) -> Model:
    query = select(Model).join(Method, col(Method.model_id) == col(Model.id)).where(Method.name == name)
    try:
        return find_model(session, name)
    except UsageError:
        found = session.exec(query).first()
        if found is None:
            raise
        return found


def standing(session: Session, context: AgentContext, board: Leaderboard, row: LeaderboardRow) -> Standing:
    """All about one row of a leaderboard."""
    benchmark = session.exec(select(Benchmark).where(Benchmark.name == board.benchmark)).one()
    method_pk = int(session.exec(select(Method.id).where(Method.name == row.method)).one() or 0)
    columns = context.columns(session, benchmark)
    scores = load_rows(session, columns, np.array([method_pk]))[0]
    prediction = _predicted(session, context, columns, row, scores)
    mean, variance, note = prediction
    return Standing(
        benchmark=board.benchmark,
        method=row.method,
        row=row,
        models=len(board.rows),
        datasets=tuple(_datasets(columns, scores, mean, variance)),
        history=tuple(_history(session, int(benchmark.id or 0), method_pk)),
        bought=tuple(_bought(session, int(benchmark.id or 0), method_pk)),
        predicted=tuple(_least_sure(columns, scores, mean, variance)),
        version_id=row.version_id,
        note=note,
    )


Predicted = tuple[NDArray[np.float64] | None, NDArray[np.float64] | None, str]


def _predicted(
    session: Session,
    context: AgentContext,
    columns: BenchmarkColumns,
    row: LeaderboardRow,
    scores: NDArray[np.float64],
) -> Predicted:
    """(N,) mean and variance by the version that made the estimate; a note where there are none."""
    if row.version_id is None or not np.isnan(scores).any():
        return None, None, ""
    try:
        found = context.estimator(session, row.version_id).predict(scores[None, :])
    except AssayError as error:  # an older version that knows fewer prompts, an artifact that is gone
        return None, None, f"no predictions: {error}"
    return found.mean[0], found.variance[0], ""


def _datasets(
    columns: BenchmarkColumns,
    scores: NDArray[np.float64],
    mean: NDArray[np.float64] | None,
    variance: NDArray[np.float64] | None,
) -> list[DatasetLine]:
    lines = []
    for d, name in enumerate(columns.datasets):
        inside = columns.dataset_index == d
        known = scores[inside & ~np.isnan(scores)]
        size = int(inside.sum())
        lines.append(
            DatasetLine(
                dataset=name,
                prompts=size,
                scored=len(known),
                mean_scored=float(known.mean()) if len(known) else None,
                estimated=None if mean is None or not size else float(mean[inside].mean()),
                # Prompts vary independently once the method is known: the smaller part of the error.
                estimated_std=None
                if variance is None or not size
                else float(np.sqrt(variance[inside].sum())) / size,
            )
        )
    return lines


def _history(session: Session, benchmark_id: int, method_pk: int) -> list[HistoryPoint]:
    query = (
        select(Estimate)
        .where(Estimate.benchmark_id == benchmark_id, Estimate.method_id == method_pk)
        .order_by(col(Estimate.id))
    )
    return [
        HistoryPoint(
            study_id=e.study_id,
            step=e.step,
            score=e.score,
            low=e.low,
            high=e.high,
            acquired=e.acquired,
            total=e.total,
            cost=e.cost,
            version_id=e.version_id,
            created_at=e.created_at,
        )
        for e in session.exec(query).all()
    ]


def _bought(session: Session, benchmark_id: int, method_pk: int) -> list[BoughtPrompt]:
    its_studies = select(StudyMethod.study_id).where(StudyMethod.method_id == method_pk)
    its_score = and_(
        col(Score.dataset_id) == col(Prompt.dataset_id),
        col(Score.scorer_id) == col(Job.scorer_id),
        col(Score.method_id) == col(Job.method_id),
        col(Score.prompt_id) == col(Job.prompt_id),
    )
    query: Any = (
        select(  # type: ignore[call-overload]
            Prompt.id,
            Dataset.name,
            Prompt.key,
            func.substr(Prompt.text, 1, EXCERPT),
            Score.value,
            Job.study_id,
            Job.finished_at,
        )
        .join(Prompt, col(Prompt.id) == col(Job.prompt_id))
        .join(Dataset, col(Dataset.id) == col(Prompt.dataset_id))
        .join(Score, its_score, isouter=True)
        .where(
            col(Job.study_id).in_(its_studies),
            Job.method_id == method_pk,
            Job.state == JobState.DONE,
            Dataset.benchmark_id == benchmark_id,
        )
        .order_by(col(Job.id).desc())
        .limit(SHOWN)
    )
    return [
        BoughtPrompt(int(pk), f"{dataset}/{key}", excerpt, score, study_id, finished)
        for pk, dataset, key, excerpt, score, study_id, finished in session.exec(query).all()
    ]


def _least_sure(
    columns: BenchmarkColumns,
    scores: NDArray[np.float64],
    mean: NDArray[np.float64] | None,
    variance: NDArray[np.float64] | None,
) -> Sequence[PredictedPrompt]:
    if mean is None or variance is None:
        return ()
    unknown = np.flatnonzero(np.isnan(scores))
    order = unknown[np.argsort(-variance[unknown], kind="stable")][:SHOWN]
    return [
        PredictedPrompt(
            prompt_id=int(columns.prompt_pks[j]),
            prompt=_label(columns, int(j)),
            mean=float(mean[j]),
            std=float(np.sqrt(variance[j])),
        )
        for j in order
    ]


def _label(columns: BenchmarkColumns, j: int) -> str:
    key, dataset = columns.prompt_keys[j], columns.datasets[columns.dataset_index[j]]
    return key if key.startswith(f"{dataset}/") else f"{dataset}/{key}"
