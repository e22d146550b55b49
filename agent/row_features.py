"""What an estimator is told of the templates of a study's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, select

from agent.context import AgentContext
from assay.settings import Settings
from estimators import Estimator, SupportsRowFeatures
from estimators.template_effects import template_effects
from estimators.template_features import template_features
from storage.matrices import BenchmarkColumns, load_rows
from storage.tables import Method, Template

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
            context.template_effects[key] = effects_of(session, columns, methods)
        return estimator.with_rows(context.template_effects[key])
    return estimator.with_rows(features_of(session, estimator.row_features, methods, context.settings))


def features_of(
    session: Session, kind: str, methods: Sequence[Method], settings: Settings
) -> NDArray[np.float64]:
    """(R, p) covariates of the templates of R methods; `kind` as in `template_features`."""
    query = select(Template.id, Template.text).where(
        col(Template.id).in_({method.template_id for method in methods})
    )
    texts = dict(session.exec(query).all())
    return template_features(kind, [texts[method.template_id] for method in methods], settings.encoder)


def effects_of(session: Session, columns: BenchmarkColumns, methods: Sequence[Method]) -> NDArray[np.float64]:
    """(R, 1) effects of the templates of R methods on other models' scores; 0 where none was studied by it.

    Of very many earlier rows the newest count.
    """
    place = {template: i for i, template in enumerate(dict.fromkeys(m.template_id for m in methods))}
    query = (
        select(Method)
        .where(col(Method.template_id).in_(list(place)))
        .where(col(Method.model_id).not_in({method.model_id for method in methods}))
        .order_by(col(Method.id).desc())
        .limit(MOST_ROWS)
    )
    earlier = list(session.exec(query).all())
    scores = load_rows(session, columns, np.array([method.id for method in earlier], dtype=np.int64))
    found = template_effects(
        scores, [m.model_id for m in earlier], [place[m.template_id] for m in earlier], len(place)
    )
    return found[[place[method.template_id] for method in methods]][:, None]
