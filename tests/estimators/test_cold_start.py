"""Prompts without history: predicted from what is known, then from the pooled answers of all methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.matrix import ScoreMatrix
from estimators import ColdStartEstimator, cold_prompts, full_rows, load_estimator, make_estimator
from estimators._cold_group import TransferPrior, fit_group

PROMPTS, ROWS = 120, 160
PRIOR = TransferPrior(np.array([0.0, 1.0]), np.array([1.0, 0.2]), 0.2, 1.0)


def world(seed: int = 0) -> ScoreMatrix:
    """160 methods x 120 prompts in three datasets that one ability and one of their own explain."""
    rng = np.random.default_rng(seed)
    index = np.repeat([0, 1, 2], PROMPTS // 3)
    ability, own = rng.normal(0.3, 1.0, (ROWS, 1)), 0.4 * rng.normal(size=(ROWS, 3))
    logit = ability + own[:, index] + rng.normal(0, 1.2, PROMPTS) + np.array([0.0, 0.4, -0.8])[index]
    values = (rng.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(float)
    return ScoreMatrix.build(values, prompt_datasets=[f"d{d}" for d in index])


def cold(matrix: ScoreMatrix) -> np.ndarray:
    return matrix.dataset_index == 2


def without(matrix: ScoreMatrix, rows: range, columns: np.ndarray) -> ScoreMatrix:
    values = matrix.values[rows].copy()
    values[:, columns] = np.nan
    return replace(matrix.rows(rows), values=values)


def answered(matrix: ScoreMatrix, rows: range, on_warm: int, on_cold: int, seed: int = 0) -> ScoreMatrix:
    """The rows with so many scores at random on warm and on cold prompts."""
    rng, values = np.random.default_rng(seed), np.full((len(rows), PROMPTS), np.nan)
    for i, row in enumerate(rows):
        for columns, count in ((~cold(matrix), on_warm), (cold(matrix), on_cold)):
            picked = rng.permutation(np.flatnonzero(columns))[:count]
            values[i, picked] = matrix.values[row, picked]
    return replace(matrix.rows(rows), values=values.astype(np.float32))


def together(first: ScoreMatrix, second: ScoreMatrix) -> ScoreMatrix:
    return replace(
        first,
        values=np.concatenate([first.values, second.values]),
        method_ids=(*first.method_ids, *second.method_ids),
    )


HISTORY, POOLED, NEW = range(80), range(80, 120), range(120, 160)


def fit(pooled: bool, base: str = "linear-gaussian") -> ColdStartEstimator:
    matrix = world()
    history = without(matrix, HISTORY, cold(matrix))
    if pooled:
        history = together(history, answered(matrix, POOLED, 30, 15))
    estimator = make_estimator(f"cold-start:{base}")
    assert isinstance(estimator, ColdStartEstimator)
    return estimator.fit(history)


def error(estimator: ColdStartEstimator, on_cold: int) -> float:
    """Mean absolute error of the cold dataset's mean, over new methods with 20 warm answers."""
    rows = answered(world(), NEW, 20, on_cold, seed=1)
    off = estimator.predict(rows.values).mean - world().values[NEW]
    return float(np.abs(off[:, cold(world())].mean(axis=1)).mean())


def test_knows_which_prompts_are_cold_and_which_rows_are_full() -> None:
    matrix = world()
    history = together(without(matrix, HISTORY, cold(matrix)), answered(matrix, POOLED, 30, 15))
    full = full_rows(history)
    assert full.tolist() == list(range(80))
    assert (cold_prompts(history.rows(full)) == cold(matrix)).all()
    assert not cold_prompts(matrix).any()


def test_without_cold_prompts_it_is_its_base() -> None:
    matrix, rows = world(), answered(world(), NEW, 20, 5)
    alone = make_estimator("linear-gaussian").fit(matrix.rows(HISTORY))
    around = make_estimator("cold-start:linear-gaussian").fit(matrix.rows(HISTORY))
    for known in (rows.values, np.full_like(rows.values, np.nan)):
        np.testing.assert_array_equal(alone.predict(known).mean, around.predict(known).mean)
        np.testing.assert_array_equal(alone.benchmark_score(known).std, around.benchmark_score(known).std)


def test_own_answers_help_and_pooled_answers_help_more() -> None:
    alone, pooled = fit(pooled=False), fit(pooled=True)
    assert error(alone, 20) < error(alone, 0)
    assert error(pooled, 10) < error(alone, 10)
    assert error(pooled, 0) < error(alone, 0)


def test_cross_fitted_predictions_do_not_know_the_answers_they_predict() -> None:
    matrix = together(without(world(), HISTORY, cold(world())), answered(world(), POOLED, 30, 15))
    estimator = fit(pooled=True)
    predicted = estimator.cross_fitted(matrix)
    asked = matrix.observed & cold(world())
    assert (~np.isnan(predicted) == asked).all()
    shown = np.where(cold(world()), np.nan, matrix.values)
    inside = estimator.predict(shown).mean[asked] - matrix.values[asked]
    assert (inside**2).mean() < ((predicted - matrix.values)[asked] ** 2).mean() < 0.25


def test_intervals_cover() -> None:
    estimator = fit(pooled=True)
    rows = answered(world(), NEW, 20, 10, seed=2)
    score = estimator.benchmark_score(rows.values)
    off = np.abs(score.mean - world().rows(NEW).benchmark_scores())
    assert float((off < 1.96 * score.std).mean()) >= 0.8


def test_new_prompts_of_a_known_dataset_start_from_its_level() -> None:
    matrix = world()
    few = np.flatnonzero(cold(matrix))[:10]
    columns = np.isin(np.arange(PROMPTS), few)
    estimator = make_estimator("cold-start:linear-gaussian").fit(without(matrix, HISTORY, columns))
    rows = answered(matrix, NEW, 40, 20)
    rows.values[:, few] = np.nan
    mean = estimator.predict(rows.values).mean
    others = np.flatnonzero(cold(matrix))[10:]
    assert abs(mean[:, few].mean() - mean[:, others].mean()) < 0.1


def test_linearisation_agrees_with_the_estimate_and_falls_with_answers() -> None:
    estimator = fit(pooled=True, base="mirt")
    less, more = (answered(world(), NEW, 10, count).values for count in (2, 12))
    for known in (less, more):
        lines, score = estimator.linearize(known), estimator.benchmark_score(known)
        np.testing.assert_allclose(lines.mean @ world().weights, score.mean, atol=1e-6)
    d = len(estimator.groups_)
    assert (
        estimator.linearize(more).covariance[:, -d:, -d:] < estimator.linearize(less).covariance[:, -d:, -d:]
    ).all()


def test_saved_and_loaded_it_answers_the_same(tmp_path: Path) -> None:
    estimator = fit(pooled=True, base="mirt")
    estimator.save(tmp_path / "a")
    loaded, rows = load_estimator(tmp_path / "a"), answered(world(), NEW, 10, 5).values
    np.testing.assert_array_equal(loaded.predict(rows).mean, estimator.predict(rows).mean)
    np.testing.assert_array_equal(loaded.benchmark_score(rows).std, estimator.benchmark_score(rows).std)
    assert estimator.findings()["cold prompts"] == PROMPTS // 3


def test_a_warm_start_keeps_the_base_where_the_prompts_are_the_same() -> None:
    first = fit(pooled=False, base="mirt")
    again = ColdStartEstimator(base="mirt")
    matrix = together(without(world(), HISTORY, cold(world())), answered(world(), POOLED, 30, 15))
    again.fit(matrix, warm_start=first)
    assert error(again, 10) < error(first, 10)


@pytest.mark.parametrize("difficulty", [-1.5, 0.0, 1.5])
def test_a_group_learns_its_level_from_pooled_answers(difficulty: float) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=300)
    features = np.column_stack([np.ones(300), x])
    own, prompts = 0.3 * rng.normal(size=300), rng.normal(size=40)
    level = 1 / (1 + np.exp(-(0.7 * x + difficulty + own)[:, None] - prompts))
    values = np.where(rng.random(level.shape) < 0.4, rng.random(level.shape) < level, np.nan)
    group = fit_group(features, values, PRIOR)
    assert group.coefficients == pytest.approx([difficulty, 0.7], abs=0.35)
    assert np.corrcoef(group.difficulty, prompts)[0, 1] > 0.8
    known = group.posterior(features, np.full(values.shape, np.nan))
    assert np.abs(known.level.mean(axis=1) - level.mean(axis=1)).mean() < 0.08


def test_a_group_without_answers_is_its_prior() -> None:
    group = fit_group(np.empty((0, 2)), np.empty((0, 5)), PRIOR)
    known = group.posterior(np.array([[1.0, 2.0]]), np.full((1, 5), np.nan))
    assert known.variance[0] == pytest.approx(1.0 + 0.2 * 4 + 0.2)
    assert known.carried[0] == 1.0
