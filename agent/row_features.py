"""What an estimator is told of the templates of a study's rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session, col, select

from assay.settings import Settings
from estimators import Estimator, SupportsRowFeatures
from estimators.template_features import template_features
from storage.tables import Method, Template

__all__ = ["with_templates"]


def with_templates(
    session: Session, estimator: Estimator, methods: Sequence[Method], settings: Settings
) -> Estimator:
    """The estimator for rows with these methods' templates; the same where it looks at none."""
    if not estimator.row_features or not isinstance(estimator, SupportsRowFeatures):
        return estimator
    query = select(Template.id, Template.text).where(
        col(Template.id).in_({method.template_id for method in methods})
    )
    texts = dict(session.exec(query).all())
    rows = [texts[method.template_id] for method in methods]
    return estimator.with_rows(template_features(estimator.row_features, rows, settings.encoder))
