"""The leaderboard of a benchmark: its data, built once and rendered anywhere (terminal, page, file).

A method is shown by its newest estimate, or exactly where every weighted prompt has a score. Ranks are
uncertain where scores are: a method's rank range holds the ranks that the data does not exclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from sqlalchemy import func
from sqlmodel import Session, col, select

from storage import estimates, quantiles
from storage.catalog import find_benchmark
from storage.coverage import Coverage, load_coverage
from storage.tables import (
    Benchmark,
    Estimate,
    EstimatorVersion,
    Method,
    Model,
    Quantile,
    Study,
    StudyMethod,
    StudyState,
    utc_now,
)

__all__ = [
    "COMPLETE",
    "INTERVAL_WORDS",
    "OPEN_STUDIES",
    "Leaderboard",
    "LeaderboardRow",
    "build",
    "rank_ranges",
]

COMPLETE = "complete"

#: What each kind of interval means, in words.
INTERVAL_WORDS = {
    "predicted": "predicted: the estimator's own spread",
    "sampling": "sampling: spread of the acquired scores",
    "conformal": "conformal: calibrated on the history's errors",
    "rehearsed": "rehearsed: calibrated on groups of the history's methods",
    COMPLETE: "complete: every prompt is scored, nothing is estimated",
}

OPEN_STUDIES = (StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)
DEFAULT_LEVEL = 0.95
TIE = 1e-12  # two exact scores that differ by less are the same sum in another order
CHUNK = 256  # rows of the pairwise comparison held at once


@dataclass(frozen=True)
class LeaderboardRow:
    """One method.

    Attributes:
        rank: 1 = best; equal scores share a rank.
        rank_best: Best rank that the data does not exclude.
        rank_worst: Worst rank that the data does not exclude.
        method: The method's name.
        model: The model's name.
        score: Benchmark score, estimated or exact, in [0, 1].
        std: Standard deviation of the estimate; 0 where the score is exact.
        low: Lower end of the interval.
        high: Upper end of the interval.
        level: Level of the interval, such as 0.95.
        interval_kind: A key of `INTERVAL_WORDS`.
        acquired: Prompts with a score, out of `total`.
        total: Prompts of the benchmark when the score was estimated.
        cost: Micro-dollars spent on this method's estimate.
        estimated_at: When it was estimated; None where it was imported complete.
        estimator: Name of the estimator, "" where nothing was estimated.
        version_id: Estimator version, None where there is none.
        study_id: The method's latest study on this benchmark, None where there is none.
        study_state: That study's state, "" where there is none.
        better_than_next: Probability of being better than the next row; None in the last row.
        stale: Whether the benchmark has other prompts now than when the score was estimated.
        templates: Templates that the model's distribution study has; 0 where there is none.
        median: Median of the scores over those templates; None where it was not asked for.
        q05: 5 % quantile of them.
        q95: 95 % quantile of them.
    """

    rank: int
    rank_best: int
    rank_worst: int
    method: str
    model: str
    score: float
    std: float
    low: float
    high: float
    level: float
    interval_kind: str
    acquired: int
    total: int
    cost: int
    estimated_at: datetime | None
    estimator: str
    version_id: int | None
    study_id: int | None
    study_state: str
    better_than_next: float | None
    stale: bool
    templates: int = 0
    median: float | None = None
    q05: float | None = None
    q95: float | None = None

    @property
    def acquired_share(self) -> float:
        """Share of the prompts that have a score."""
        return self.acquired / self.total if self.total else 0.0

    @property
    def width(self) -> float:
        """Width of the interval."""
        return self.high - self.low

    @property
    def spread(self) -> float:
        """The standard deviation, or the wider one that an (asymmetric or calibrated) interval stands for."""
        if self.interval_kind == COMPLETE:
            return 0.0
        return max(self.std, self.width / (2.0 * float(ndtri(0.5 + self.level / 2.0))))

    def age_seconds(self, now: datetime) -> float | None:
        """Seconds since it was estimated; None where it was imported complete."""
        return None if self.estimated_at is None else max(0.0, (now - self.estimated_at).total_seconds())


@dataclass(frozen=True)
class Leaderboard:
    """A benchmark's leaderboard, best method first.

    Attributes:
        benchmark: The benchmark's name.
        datasets: Its datasets.
        prompts: Number of its prompts.
        level: Level of the rank ranges.
        rows: The methods that have a score.
        pending: Methods with an unfinished study and no estimate yet (open: waiting, running or paused).
        unlisted: Methods with some scores, but neither an estimate nor a study under way.
        retired: Methods left out because their model is retired.
        built_at: When this was read from the database.
    """

    benchmark: str
    datasets: tuple[str, ...]
    prompts: int
    level: float
    rows: tuple[LeaderboardRow, ...]
    pending: int
    unlisted: int
    retired: int
    built_at: datetime

    @property
    def cost(self) -> int:
        """Micro-dollars spent on the estimates shown."""
        return sum(row.cost for row in self.rows)

    @property
    def open_studies(self) -> int:
        """Methods with a study that is not finished, listed or not."""
        return self.pending + sum(row.study_state in OPEN_STUDIES for row in self.rows)

    def only(self, rows: Sequence[LeaderboardRow]) -> Leaderboard:
        """The same leaderboard with some of its rows, in the order given; their ranks stay."""
        return replace(self, rows=tuple(rows))


def build(session: Session, benchmark_name: str, cache: Path | None = None) -> Leaderboard:
    """Read a benchmark's leaderboard.

    Args:
        session: A reading session.
        benchmark_name: The benchmark.
        cache: Folder for what was counted before (`Settings.cache_dir`); None = no cache.

    Raises:
        UsageError: There is no such benchmark; the hint lists those there are.
    """
    benchmark = find_benchmark(session, benchmark_name)
    coverage = load_coverage(session, benchmark, cache)
    methods, retired = _methods(session)
    work = _work(session, benchmark)
    estimated = {e.method_id: e for e in estimates.latest(session, _id(benchmark)) if e.method_id in methods}
    exact = _exact(coverage, methods)
    rows = [_estimated_row(e, methods, work, coverage) for pk, e in estimated.items() if pk not in exact]
    rows += [_exact_row(pk, *found, methods, work, estimated.get(pk)) for pk, found in exact.items()]
    rows = with_templates(session, _id(benchmark), rows, {name for _, name in methods.values()})
    shown = estimated.keys() | exact.keys()
    pending = {pk for pk, study in work.latest.items() if study.open and pk in methods} - shown
    scored = {int(pk) for pk in coverage.method_pks}
    return Leaderboard(
        benchmark=benchmark.name,
        datasets=coverage.datasets,
        prompts=coverage.n_prompts,
        level=(level := max((e.level for e in estimated.values()), default=DEFAULT_LEVEL)),
        rows=_ranked(rows, level),
        pending=len(pending),
        unlisted=len((scored & methods.keys()) - shown - pending),
        retired=len(retired & (scored | work.latest.keys())),
        built_at=utc_now(),
    )


# --- what is read ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StudyInfo:
    id: int
    state: str
    estimator: str

    @property
    def open(self) -> bool:
        return self.state in OPEN_STUDIES


@dataclass(frozen=True)
class _Work:
    latest: dict[int, _StudyInfo]  # newest study of each method
    studies: dict[int, _StudyInfo]
    versions: dict[int, str]  # estimator of each version


def _id(benchmark: Benchmark) -> int:
    assert benchmark.id is not None
    return benchmark.id


def _methods(session: Session) -> tuple[dict[int, tuple[str, str]], set[int]]:
    """(method, model) names of the methods in use by key, and the keys of retired models' methods."""
    query = select(Method.id, Method.name, Model.name, Model.retired_at).join(
        Model, col(Model.id) == col(Method.model_id)
    )
    rows: list[Any] = list(session.exec(query).all())
    used = {pk: (method, model) for pk, method, model, retired_at in rows if retired_at is None}
    return used, {pk for pk, _, _, retired_at in rows if retired_at is not None}


def _work(session: Session, benchmark: Benchmark) -> _Work:
    query = select(Study.id, Study.state, Study.estimator).where(Study.benchmark_id == benchmark.id)
    studies = {pk: _StudyInfo(pk, *rest) for pk, *rest in session.exec(query).all() if pk is not None}
    newest = (
        select(StudyMethod.method_id, func.max(StudyMethod.study_id))
        .join(Study, col(Study.id) == col(StudyMethod.study_id))
        .where(Study.benchmark_id == benchmark.id)
        .group_by(col(StudyMethod.method_id))
    )
    latest = {method: studies[study] for method, study in session.exec(newest).all()}
    named = select(EstimatorVersion.id, EstimatorVersion.estimator).where(
        EstimatorVersion.benchmark_id == benchmark.id
    )
    versions = {pk: name for pk, name in session.exec(named).all() if pk is not None}
    return _Work(latest, studies, versions)


def _exact(coverage: Coverage, methods: dict[int, tuple[str, str]]) -> dict[int, tuple[float, int, int]]:
    """(score, number of scores, number of prompts) of the complete rows, by method."""
    found = zip(
        coverage.method_pks.tolist(),
        coverage.exact_scores().tolist(),
        coverage.counts.sum(axis=1).tolist(),
        strict=True,
    )
    total = coverage.n_prompts
    return {pk: (score, count, total) for pk, score, count in found if score == score and pk in methods}


# --- rows --------------------------------------------------------------------------------------------------


def _estimated_row(
    estimate: Estimate, methods: dict[int, tuple[str, str]], work: _Work, coverage: Coverage
) -> LeaderboardRow:
    made_by = work.studies.get(estimate.study_id)
    method, model = methods[estimate.method_id]
    return LeaderboardRow(
        **_unranked(work.latest.get(estimate.method_id, made_by)),
        method=method,
        model=model,
        score=estimate.score,
        std=estimate.std,
        low=estimate.low,
        high=estimate.high,
        level=estimate.level,
        interval_kind=estimate.interval_kind,
        acquired=estimate.acquired,
        total=estimate.total,
        cost=estimate.cost,
        estimated_at=estimate.created_at,
        estimator=work.versions.get(estimate.version_id or 0, made_by.estimator if made_by else ""),
        version_id=estimate.version_id,
        stale=estimate.total != coverage.n_prompts,
    )


def _exact_row(
    pk: int,
    score: float,
    count: int,
    total: int,
    methods: dict[int, tuple[str, str]],
    work: _Work,
    estimate: Estimate | None,
) -> LeaderboardRow:
    method, model = methods[pk]
    return LeaderboardRow(
        **_unranked(work.latest.get(pk)),
        method=method,
        model=model,
        score=score,
        std=0.0,
        low=score,
        high=score,
        level=1.0,
        interval_kind=COMPLETE,
        acquired=count,
        total=total,
        cost=estimate.cost if estimate else 0,
        estimated_at=estimate.created_at if estimate else None,
        estimator="",
        version_id=None,
        stale=False,
    )


def _unranked(study: _StudyInfo | None) -> dict[str, Any]:
    return {
        "rank": 0,
        "rank_best": 0,
        "rank_worst": 0,
        "better_than_next": None,
        "study_id": study.id if study else None,
        "study_state": study.state if study else "",
    }


def with_templates(
    session: Session, benchmark_id: int, rows: list[LeaderboardRow], models: set[str]
) -> list[LeaderboardRow]:
    """The rows with each model's templates folded into one row: its own, or one that shows the median.

    Args:
        session: A reading session.
        benchmark_id: The benchmark.
        rows: A row per method.
        models: Names of the models in use.
    """
    for model_id, found in quantiles.latest(session, benchmark_id).items():
        model = session.get_one(Model, model_id)
        if model.name not in models or not found:
            continue
        members = _names_of_rows(session, found[0].study_id) - {model.name}
        folded = [row for row in rows if row.method in members]
        rows = [row for row in rows if row.method not in members]
        if not any(row.method == model.name for row in rows) and folded:
            rows.append(_median_row(model.name, found, folded))
        at = {round(quantile.at, 6): quantile.value for quantile in found}
        spread: dict[str, Any] = {"median": at.get(0.5), "q05": at.get(0.05), "q95": at.get(0.95)}
        spread["templates"] = found[0].rows
        rows = [replace(row, **spread) if row.method == model.name else row for row in rows]
    return rows


def _names_of_rows(session: Session, study_id: int) -> set[str]:
    query = select(Method.name).join(StudyMethod, col(StudyMethod.method_id) == col(Method.id))
    return set(session.exec(query.where(StudyMethod.study_id == study_id)).all())


def _median_row(model: str, found: Sequence[Quantile], folded: Sequence[LeaderboardRow]) -> LeaderboardRow:
    """A row for a model that is known by its templates alone: the quantile nearest to the median."""
    middle = min(found, key=lambda quantile: abs(quantile.at - 0.5))
    return replace(
        folded[0],
        method=model,
        model=model,
        score=middle.value,
        std=(middle.high - middle.low) / (2.0 * float(ndtri(0.5 + middle.level / 2.0))),
        low=middle.low,
        high=middle.high,
        level=middle.level,
        interval_kind=middle.interval_kind,
        acquired=middle.acquired,
        total=middle.total,
        cost=sum(row.cost for row in folded),
        estimated_at=middle.created_at,
    )


# --- ranks -------------------------------------------------------------------------------------------------


def _ranked(rows: list[LeaderboardRow], level: float) -> tuple[LeaderboardRow, ...]:
    rows = sorted(rows, key=lambda row: (-row.score, row.method))
    score = np.array([row.score for row in rows])
    spread = np.array([row.spread for row in rows])
    best, worst = rank_ranges(score, spread, level)
    ahead = _better_than_next(score, spread)
    higher = np.searchsorted(-score, -score - TIE)  # rows are sorted: how many lie clearly above
    return tuple(
        replace(row, rank=int(above) + 1, rank_best=int(b), rank_worst=int(w), better_than_next=p)
        for row, above, b, w, p in zip(rows, higher, best, worst, ahead, strict=True)
    )


def rank_ranges(
    score: NDArray[np.float64], spread: NDArray[np.float64], level: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Best and worst rank of each of M methods that pairwise comparisons at `level` do not exclude.

    A method is surely below another where their difference passes the two-sided normal quantile of its
    standard deviation; scores count as independent normals. Each pair is judged by itself, without a
    correction for the number of pairs.

    Args:
        score: (M,) scores.
        spread: (M,) standard deviations, >= 0.
        level: Level of each comparison, in (0, 1).

    Returns:
        (M,) best ranks and (M,) worst ranks, 1 = best.
    """
    z = float(ndtri(0.5 + level / 2.0))
    above, below = np.zeros(len(score), dtype=np.int64), np.zeros(len(score), dtype=np.int64)
    # Exact scores among themselves need no comparison of pairs; most rows of a large leaderboard are exact.
    exact, open_ = np.flatnonzero(spread == 0), np.flatnonzero(spread > 0)
    ordered = np.sort(score[exact])
    above[exact] = len(exact) - np.searchsorted(ordered, score[exact] + TIE, side="right")
    below[exact] = np.searchsorted(ordered, score[exact] - TIE, side="left")
    for start in range(0, len(open_), CHUNK):
        part = open_[start : start + CHUNK]
        ahead = score[None, :] - score[part, None]  # (chunk, M)
        margin = z * np.sqrt(spread[None, :] ** 2 + spread[part, None] ** 2) + TIE
        higher, lower = ahead > margin, -ahead > margin
        above[part], below[part] = higher.sum(axis=1), lower.sum(axis=1)
        # The same pairs as the exact rows see them.
        above[exact] += lower[:, exact].sum(axis=0)
        below[exact] += higher[:, exact].sum(axis=0)
    return 1 + above, len(score) - below


def _better_than_next(score: NDArray[np.float64], spread: NDArray[np.float64]) -> list[float | None]:
    """Probability that each row's true score is above that of the row below it; None for the last."""
    if not len(score):
        return []
    ahead = score[:-1] - score[1:]
    joint = np.hypot(spread[:-1], spread[1:])
    certain = np.where(ahead > TIE, 1.0, 0.5)
    probability = np.where(joint > 0, ndtr(ahead / np.where(joint > 0, joint, 1.0)), certain)
    return [*probability.tolist(), None]
