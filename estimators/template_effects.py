"""How much better or worse than others each template was for the models that were studied before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray
from estimators._two_way_logistic import Cells, fit_two_way
from estimators._x_pirt import binarise, principal_components

__all__ = ["template_effects"]

Array = NDArray[np.float64]
MODELS_APART = 6.0  # how many times as far models may lie apart as templates


def template_effects(
    scores: FloatArray,
    models: Sequence[int],
    templates: Sequence[int],
    count: int,
    features: FloatArray | None = None,
) -> Array:
    """Effects of templates, in logits, shrunk to nothing as far as the earlier models disagree or say little.

    A logistic model of all earlier cells: theta of a row = model + template + what is the row's own, the
    easiness of the examples common to all. A template's effect is in part linear in its features, so that
    templates which no earlier model was asked by borrow from those that look alike: the features are tuned
    to what other models' results make of them.

    Args:
        scores: (E, N) scores of earlier rows, NaN = not acquired.
        models: (E,) number of each row's model.
        templates: (E,) number of each row's template, below `count`.
        count: T templates.
        features: (T, p) embeddings or counts of the templates' texts, reduced to 25 principal components;
            None = nothing is known of them.

    Returns:
        (T,) effects; without features 0 for a template that no row has.

    Raises:
        BadInputError: Rows and numbers do not fit together.
    """
    values = np.asarray(scores, dtype=np.float64)
    of_model = np.unique(np.asarray(models, dtype=np.intp), return_inverse=True)[1]
    of_template = np.asarray(templates, dtype=np.intp)
    if len(values) != len(of_model) or len(values) != len(of_template):
        raise BadInputError(f"{len(values)} rows, {len(of_model)} models and {len(of_template)} templates")
    if len(of_template) and (of_template.min() < 0 or of_template.max() >= count):
        raise BadInputError(f"templates are numbered from 0 to {count - 1}")
    rows, columns = np.nonzero(~np.isnan(values))
    if len(rows) == 0:
        return np.zeros(count)
    looks = np.eye(count)
    if features is not None:
        looks = np.concatenate([looks, principal_components(features)], axis=1)
    apart = MODELS_APART * np.eye(int(of_model.max()) + 1)[of_model]
    covariates = np.concatenate([looks[of_template], apart], axis=1)
    cells = Cells(rows, columns, binarise(values[rows, columns]), covariates, np.zeros((values.shape[1], 0)))
    slopes = fit_two_way(cells).row_slopes(covariates)
    return np.asarray(looks @ slopes[: looks.shape[1]])
