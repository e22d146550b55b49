"""Sure predictions as training data: made, added, checked."""

from __future__ import annotations

import numpy as np
import pytest

from assay.matrix import ScoreMatrix
from estimators import ColdStartEstimator, PseudoLabels, check_labels, make_pseudo_labels
from tests.estimators.test_cold_start import (
    HISTORY,
    NEW,
    POOLED,
    PROMPTS,
    answered,
    cold,
    fit,
    together,
    without,
    world,
)


def history() -> ScoreMatrix:
    return together(without(world(), HISTORY, cold(world())), answered(world(), POOLED, 30, 15))


def labels(threshold: float) -> PseudoLabels:
    return make_pseudo_labels(fit(pooled=True), history(), threshold)


def test_labels_are_sure_predictions_for_full_rows_on_cold_prompts() -> None:
    made = labels(0.1)
    known = set(np.array(world().prompt_ids)[cold(world())])
    assert set(made.prompts) <= known
    assert set(made.methods) <= {f"method-{i}" for i in HISTORY}
    assert (made.uncertainty <= 0.1).all()
    assert set(made.values.tolist()) <= {0.0, 1.0}
    assert 0 < len(made) < len(labels(0.2))
    assert len(labels(0.0)) == 0


def test_a_label_never_replaces_a_score() -> None:
    matrix = world().rows(HISTORY)
    cells = PseudoLabels(("method-0", "gone"), ("prompt-0", "prompt-1"), np.array([0.5, 1.0]), np.zeros(2))
    np.testing.assert_array_equal(cells.added_to(matrix).values, matrix.values)
    empty = without(world(), HISTORY, cold(world()))
    made = labels(0.1).added_to(empty)
    assert int(made.observed.sum()) == int(empty.observed.sum()) + len(labels(0.1))


def truths(*, right: bool) -> PseudoLabels:
    """Labels of the full rows that are all right, or all wrong."""
    matrix = world()
    i, j = np.nonzero(np.broadcast_to(cold(matrix), (len(HISTORY), PROMPTS)))
    values = matrix.values[i, j]
    return PseudoLabels(
        tuple(matrix.method_ids[r] for r in i),
        tuple(matrix.prompt_ids[c] for c in j),
        values if right else 1.0 - values,
        np.zeros(len(i), dtype=np.float32),
    )


@pytest.mark.parametrize("right", [True, False])
def test_labels_are_kept_only_where_real_answers_are_predicted_better(right: bool) -> None:
    few = together(without(world(), HISTORY, cold(world())), answered(world(), POOLED, 30, 3))
    estimator = ColdStartEstimator().fit(few)
    check = check_labels(estimator, few, truths(right=right))
    assert check.kept == right
    assert check.answers == 3 * len(POOLED)
    assert (check.loss_with < check.loss_without) == right
    assert check.reason.startswith("used" if right else "not used")


def test_too_few_answers_decide_nothing() -> None:
    empty = without(world(), HISTORY, cold(world()))
    check = check_labels(fit(pooled=False), empty, truths(right=True))
    assert (check.kept, check.answers) == (False, 0)
    assert "too few" in check.reason


def test_learning_from_labels_keeps_what_is_cold() -> None:
    estimator = fit(pooled=True)
    other = estimator.with_labels(labels(0.1).added_to(history()))
    assert (other.cold_ == estimator.cold_).all()
    rows = answered(world(), NEW, 10, 2).values
    assert not np.allclose(other.predict(rows).mean, estimator.predict(rows).mean)
