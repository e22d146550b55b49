"""What an estimator is told of the templates of a study's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, func, select

from agent.context import AgentContext
from assay.settings import Settings
from estimators import Estimator, SupportsRowFeatures
from estimators.template_effects import template_effects
from estimators.template_features import template_features
from storage.matrices import BenchmarkColumns, load_rows
from storage.tables import Method, Score, Template

__all__ = ["effects_of", "features_of", "with_templates"]

#: Rows of earlier models that are looked at: the fit's time grows with their cube.
MOST_ROWS = 400


def with_templates(
    session: Session,
    context: AgentContext,
    version_id: int,
    columns: BenchmarkColumns,
    methods: Sequence[Method],
) -> Estimator:
    """The version's estimator for rows with these methods' templates; as it is where it looks at none."""
    estimator = context.estimator(session, version_id)
    if not estimator.row_features or not isinstance(estimator, SupportsRowFeatures):
        return estimator
    if estimator.row_features == "effects":
        key = (version_id, tuple(method.id or 0 for method in methods))
        if key not in context.template_effects:
            context.template_effects[key] = effects_of(session, columns, methods, context.settings)
        return estimator.with_rows(context.template_effects[key])
    return estimator.with_rows(features_of(session, estimator.row_features, methods, context.settings))


def features_of(
    session: Session, kind: str, methods: Sequence[Method], settings: Settings
) -> NDArray[np.float64]:
    """(R, p) covariates of the templates of R methods; `kind` as in `template_features`."""
    texts = _texts(session, [method.template_id for method in methods])
    return template_features(kind, texts, settings.encoder)


def effects_of(
    session: Session, columns: BenchmarkColumns, methods: Sequence[Method], settings: Settings
) -> NDArray[np.float64]:
    """(R, 1) effects of the templates of R methods on the scores of other models.

    Those that were asked by one template alone tell nothing of it. Of very many rows those by the same
    templates come first, then the newest.
    """
    models, wanted = {m.model_id for m in methods}, {m.template_id for m in methods}
    scored = select(Score.method_id).where(col(Score.dataset_id).in_(columns.dataset_pks.tolist())).distinct()
    compared = (
        select(Method.model_id)
        .where(col(Method.id).in_(scored))
        .group_by(col(Method.model_id))
        .having(func.count() > 1)
    )
    query = (
        select(Method)
        .where(col(Method.model_id).not_in(models), col(Method.id).in_(scored))
        .where(col(Method.model_id).in_(compared))
        .order_by(col(Method.template_id).in_(wanted).desc(), col(Method.id).desc())
        .limit(MOST_ROWS)
    )
    earlier = list(session.exec(query).all())
    listed = list(dict.fromkeys(m.template_id for m in [*methods, *earlier]))
    place = {template: i for i, template in enumerate(listed)}
    texts = _texts(session, listed)
    found = template_effects(
        load_rows(session, columns, np.array([method.id for method in earlier], dtype=np.int64)),
        [method.model_id for method in earlier],
        [place[method.template_id] for method in earlier],
        len(listed),
        _looks(texts, settings),
    )
    return found[[place[method.template_id] for method in methods]][:, None]


def _looks(texts: Sequence[str], settings: Settings) -> NDArray[np.float64]:
    """(T, p) what the templates look like: counts of marks and words, and their embeddings."""
    parts = [template_features("discrete", texts), template_features("embedding", texts, settings.encoder)]
    return np.concatenate([part / max(float(np.abs(part).max(initial=0.0)), 1e-12) for part in parts], axis=1)


def _texts(session: Session, templates: Sequence[int]) -> list[str]:
    query = select(Template.id, Template.text).where(col(Template.id).in_(templates))
    texts = dict(session.exec(query).all())
    return [texts[template] for template in templates]
