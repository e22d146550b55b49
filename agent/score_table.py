"""Scores of models by template, from what studies and imports left: rows for `sensitivity`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, select

from agent.sensitivity import kendalls_w
from assay.errors import UsageError
from storage import estimates
from storage.catalog import find_benchmark
from storage.coverage import load_coverage
from storage.tables import Benchmark, Method, Model, Template

__all__ = ["score_table", "subject_agreement"]

Table = tuple[NDArray[np.float64], list[str], list[str]]


def score_table(session: Session, benchmarks: Sequence[str], models: Sequence[str]) -> Table:
    """(T, M) newest scores, NaN where there is none, with the names of the M models and T rows.

    One benchmark: rows are templates. Several: rows are the benchmarks, each model by its default method.

    Args:
        session: A reading session.
        benchmarks: Names.
        models: Names; none takes all models that have a score in every row that two models share.

    Raises:
        UsageError: Nothing to compare.
    """
    found = [_scores(session, find_benchmark(session, name)) for name in benchmarks]
    if len(benchmarks) == 1:
        by_row: dict[str, dict[str, float]] = {}
        for (model, template), score in found[0].items():
            by_row.setdefault(template, {})[model] = score
    else:
        by_row = {name: _defaults(scores) for name, scores in zip(benchmarks, found, strict=True)}
    names = list(models) or _common(by_row)
    rows = [row for row, scores in by_row.items() if all(name in scores for name in names)]
    if not names or len(rows) < 2:
        raise UsageError(
            "no two templates share the scores of a model",
            "run: assay study create --objective distribution --model M --templates 'NAME-*'",
        )
    return np.array([[by_row[row][name] for name in names] for row in rows]), names, rows


def subject_agreement(session: Session, benchmark: str, models: Sequence[str]) -> dict[str, float]:
    """By model, Kendall's W of the datasets (subjects) ranking its templates, by acquired scores.

    Only templates with a score in every dataset count; models with fewer than two, and benchmarks with
    one dataset, have none.
    """
    coverage = load_coverage(session, find_benchmark(session, benchmark), None)
    names = _names(session)
    found: dict[str, list[NDArray[np.float64]]] = {}
    for pk, counts, sums in zip(coverage.method_pks.tolist(), coverage.counts, coverage.sums, strict=True):
        if pk in names and names[pk][0] in models and (counts > 0).all() and len(counts) > 1:
            found.setdefault(names[pk][0], []).append(sums / counts)
    return {model: kendalls_w(np.array(rows).T) for model, rows in found.items() if len(rows) > 1}


def _names(session: Session) -> dict[int | None, tuple[str, str]]:
    """(model, template) names by method, of the models in use."""
    query = (
        select(Method.id, Model.name, Template.name)
        .join(Model, col(Model.id) == col(Method.model_id))
        .join(Template, col(Template.id) == col(Method.template_id))
        .where(col(Model.retired_at).is_(None))
        .order_by(col(Method.id))
    )
    return {pk: (model, template) for pk, model, template in session.exec(query).all()}


def _scores(session: Session, benchmark: Benchmark) -> dict[tuple[str, str], float]:
    """(model, template) -> newest estimate, or the exact score of a complete row."""
    names = _names(session)
    assert benchmark.id is not None
    scores = {e.method_id: e.score for e in estimates.latest(session, benchmark.id)}
    coverage = load_coverage(session, benchmark, None)
    exact = zip(coverage.method_pks.tolist(), coverage.exact_scores().tolist(), strict=True)
    scores |= {pk: score for pk, score in exact if score == score}
    return {names[pk]: score for pk, score in scores.items() if pk in names}


def _defaults(scores: dict[tuple[str, str], float]) -> dict[str, float]:
    """Each model's score by its first method."""
    found: dict[str, float] = {}
    for (model, _), score in scores.items():
        found.setdefault(model, score)
    return found


def _common(by_row: dict[str, dict[str, float]]) -> list[str]:
    """The models that have the most rows; those with fewer would take rows away."""
    count: dict[str, int] = {}
    for scores in by_row.values():
        for model in scores:
            count[model] = count.get(model, 0) + 1
    most = max(count.values(), default=0)
    return sorted(model for model, number in count.items() if number == most and most > 1)
