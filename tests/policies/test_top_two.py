"""Top-two: what the history says decides, unless it is wrong or absent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import Linearization
from policies import PolicyState, make_policy
from policies._top_two import TopTwoPolicy
from tests.policies.factory import FactorEstimator
from tests.policies.test_best_arm import answers, run, state_of


def latent_scores(rows: int, seed: int, columns: int = 60) -> np.ndarray:
    """Methods of one ability answer prompts of one difficulty."""
    rng = np.random.default_rng(seed)
    difficulty = np.random.default_rng(99).normal(size=columns)
    logit = 2.0 * (rng.normal(size=(rows, 1)) - difficulty)
    return (rng.random((rows, columns)) < 1.0 / (1.0 + np.exp(-logit))).astype(float)


def with_history(rows: int = 20, seed: int = 1) -> tuple[np.ndarray, FactorEstimator]:
    estimator = FactorEstimator().fit(ScoreMatrix.build(latent_scores(150, 7)))
    return latent_scores(rows, seed), estimator


def blank(table: np.ndarray, estimator: object, **changes: object) -> PolicyState:
    return state_of(np.full(table.shape, np.nan), estimator=estimator, **changes)


def share_right(name: str, cells: int, trials: int = 12) -> float:
    right = 0
    for trial in range(trials):
        table, estimator = with_history(seed=trial)
        state = run(policy := make_policy(name), table, cells, trial, estimator=estimator)
        best = table.mean(axis=1)
        right += best[policy.recommend(state).best] == best.max()
    return right / trials


def test_history_finds_the_best_with_fewer_cells() -> None:
    assert share_right("top-two", 200) >= share_right("ucb-e", 200) + 0.2


def test_without_an_estimator_it_is_ucb_e() -> None:
    table = answers()
    ours = run(make_policy("top-two", batch=5), table, 100, 3)
    theirs = run(make_policy("ucb-e", batch=5), table, 100, 3)
    np.testing.assert_array_equal(ours.scores, theirs.scores)
    opinions = [make_policy(name).recommend(ours) for name in ("top-two", "ucb-e")]
    np.testing.assert_array_equal(opinions[0].mean, opinions[1].mean)


def test_a_history_that_predicts_wrongly_is_dropped() -> None:
    table, estimator = with_history()
    lies = 1.0 - table
    state = state_of(np.where(np.random.default_rng(0).random(table.shape) < 0.4, lies, np.nan))
    misled = replace(state, estimator=estimator)
    means = [make_policy("top-two").recommend(s).mean for s in (misled, state)]
    np.testing.assert_array_equal(*means)
    honest = replace(misled, scores=np.where(np.isnan(state.scores), np.nan, table))
    assert (
        make_policy("top-two").recommend(honest).mean != make_policy("ucb-e").recommend(honest).mean
    ).any()


def test_stops_once_it_is_sure_enough() -> None:
    table, estimator = with_history()
    state = run(policy := make_policy("top-two", confidence=0.9), table, table.size, estimator=estimator)
    assert (~np.isnan(state.scores)).sum() < table.size / 2
    assert policy.recommend(state).probability_best.max() >= 0.9


def test_the_first_prompt_is_the_one_that_tells_most_of_the_score() -> None:
    table, estimator = with_history(rows=1)
    state = blank(table, estimator)
    line = estimator.linearize(state.scores)
    left = state.weights
    joint = line.loadings @ line.covariance[0] @ line.loadings.T + np.diag(line.noise[0])
    gains = (joint @ left) ** 2 / np.diag(joint)
    chosen = make_policy("top-two").select(state, 1)
    assert chosen.columns[0] == gains.argmax()
    assert chosen.gain[0] == pytest.approx(gains.max())


def test_a_dear_prompt_is_left_for_a_cheap_one_that_tells_nearly_as_much() -> None:
    table, estimator = with_history(rows=1)
    first = int(make_policy("top-two").select(blank(table, estimator), 1).columns[0])
    cost = np.ones(table.shape)
    cost[0, first] = 50.0
    assert make_policy("top-two").select(blank(table, estimator, cost=cost), 1).columns[0] != first


def test_a_dear_method_is_asked_less() -> None:
    table, estimator = with_history(rows=2, seed=4)
    cost = np.ones(table.shape)
    cost[0] = 20.0
    chosen = make_policy("top-two", batch=1).select(blank(table, estimator, cost=cost), 20)
    assert (chosen.rows == 1).sum() > 12


def test_pending_cells_count_as_answered_as_expected() -> None:
    table, estimator = with_history(rows=1)
    policy = make_policy("top-two")
    together = policy.select(blank(table, estimator), 4).columns
    pending = np.zeros(table.shape, dtype=bool)
    pending[0, together[:2]] = True
    assert (
        policy.select(blank(table, estimator, pending=pending), 2).columns.tolist() == together[2:].tolist()
    )


def test_no_more_is_asked_of_rows_that_are_full() -> None:
    table, estimator = with_history(rows=3)
    state = blank(table, estimator)
    state.scores[:2] = table[:2]
    assert set(make_policy("top-two").select(state, 10).rows.tolist()) == {2}


def test_remembered_beliefs_change_no_answer() -> None:
    table, estimator = with_history()
    state = run(used := TopTwoPolicy(), table, 120, estimator=estimator)
    fresh = TopTwoPolicy()
    chosen = [p.select(replace(state, rng=np.random.default_rng(0)), 9) for p in (used, fresh)]
    np.testing.assert_array_equal(chosen[0].columns, chosen[1].columns)
    np.testing.assert_array_equal(chosen[0].rows, chosen[1].rows)


def test_loadings_of_each_row_or_of_all_rows_are_both_taken() -> None:
    table, estimator = with_history()

    class OwnLoadings(FactorEstimator):
        def linearize(self, observed: np.ndarray) -> Linearization:
            line = estimator.linearize(observed)
            rows = np.repeat(line.loadings[None], len(observed), axis=0)
            return replace(line, loadings=rows)

    other = OwnLoadings()
    chosen = [make_policy("top-two").select(blank(table, e), 15) for e in (estimator, other)]
    np.testing.assert_array_equal(chosen[0].columns, chosen[1].columns)


@pytest.mark.parametrize("params", [{"confidence": 0.0}, {"confidence": 1.1}, {"batch": 0}])
def test_impossible_settings_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match="top-two needs"):
        make_policy("top-two", **params)
