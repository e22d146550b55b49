"""What an estimator is told of the templates of a study's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, select

from assay.settings import Settings
from estimators import Estimator, SupportsRowFeatures
from estimators.template_features import template_features
from storage.tables import Method, Template

__all__ = ["features_of", "with_templates"]


def with_templates(
    session: Session, estimator: Estimator, methods: Sequence[Method], settings: Settings
) -> Estimator:
    """The estimator for rows with these methods' templates; the same where it looks at none."""
    if not estimator.row_features or not isinstance(estimator, SupportsRowFeatures):
        return estimator
    return estimator.with_rows(features_of(session, estimator.row_features, methods, settings))


def features_of(
    session: Session, kind: str, methods: Sequence[Method], settings: Settings
) -> NDArray[np.float64]:
    """(R, p) covariates of the templates of R methods; `kind` as in `template_features`."""
    query = select(Template.id, Template.text).where(
        col(Template.id).in_({method.template_id for method in methods})
    )
    texts = dict(session.exec(query).all())
    return template_features(kind, [texts[method.template_id] for method in methods], settings.encoder)
