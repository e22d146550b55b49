"""The published best-arm policies: which row, which columns, and what they believe in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from assay.errors import BadInputError
from policies import POLICIES, PolicyState, SupportsRecommendation, make_policy
from policies._rows import probability_best, row_weights
from policies._ucb_e_lrf import UcbELrfPolicy

BEST_ARM = [name for name in POLICIES.names() if isinstance(make_policy(name), SupportsRecommendation)]


def state_of(scores: np.ndarray, seed: int = 0, **changes: object) -> PolicyState:
    scores = np.array(scores, dtype=float)
    n = scores.shape[1]
    state = PolicyState(
        scores=scores,
        pending=np.zeros(scores.shape, dtype=bool),
        available=np.ones(scores.shape, dtype=bool),
        cost=np.ones(scores.shape),
        weights=np.full(n, 1.0 / n),
        dataset_index=np.zeros(n, dtype=np.intp),
        estimator=None,
        rng=np.random.default_rng(seed),
    )
    return replace(state, **changes)


def answers(rows: int = 12, columns: int = 80, seed: int = 0) -> np.ndarray:
    """Binary answers; the last row is the best by far."""
    rng = np.random.default_rng(seed)
    level = np.append(rng.uniform(0.2, 0.6, rows - 1), 0.9)
    return (rng.random((rows, columns)) < level[:, None]).astype(float)


def run(policy: object, table: np.ndarray, cells: int, seed: int = 0, **changes: object) -> PolicyState:
    state = state_of(np.full(table.shape, np.nan), seed, **changes)
    while cells > 0 and len(chosen := policy.select(state, min(policy.batch, cells))):
        state.scores[chosen.rows, chosen.columns] = table[chosen.rows, chosen.columns]
        cells -= len(chosen)
    return state


@pytest.mark.parametrize("name", BEST_ARM)
class TestEveryBestArmPolicy:
    def test_names_the_best_row_and_is_sure_when_all_is_known(self, name: str) -> None:
        table = answers()
        opinion = make_policy(name).recommend(state_of(table))
        np.testing.assert_allclose(opinion.mean, table.mean(axis=1))
        assert opinion.best == table.mean(axis=1).argmax()
        assert opinion.probability_best[opinion.best] > 0.99

    def test_finds_the_best_with_a_part_of_the_cells(self, name: str) -> None:
        state = run(make_policy(name), answers(), 400)
        opinion = make_policy(name).recommend(state)
        assert opinion.best == 11
        assert opinion.probability_best.sum() == pytest.approx(1.0)

    def test_knowing_nothing_it_takes_all_rows_for_alike(self, name: str) -> None:
        opinion = make_policy(name).recommend(state_of(np.full((4, 10), np.nan)))
        np.testing.assert_allclose(opinion.probability_best, 0.25, atol=1e-6)

    def test_recommending_draws_nothing_and_changes_nothing(self, name: str) -> None:
        state = run(make_policy(name), answers(), 150)
        before, generator = state.scores.copy(), state.rng.bit_generator.state
        make_policy(name).recommend(state)
        assert state.rng.bit_generator.state == generator
        np.testing.assert_array_equal(state.scores, before)

    def test_methods_and_prompts_may_join_a_study(self, name: str) -> None:
        policy, table = make_policy(name), answers()
        state = run(policy, table[:8, :60], 200)
        grown = state_of(np.full(table.shape, np.nan))
        grown.scores[:8, :60] = state.scores
        for _ in range(40):
            chosen = policy.select(grown, 16)
            grown.scores[chosen.rows, chosen.columns] = table[chosen.rows, chosen.columns]
        assert policy.recommend(grown).best == 11


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("real", [False, True])
def test_ucb_e_replays_as_it_selects(batch: int, weighted: bool, real: bool) -> None:
    table = np.random.default_rng(3).random((9, 30)) if real else answers(9, 30)
    weights = np.random.default_rng(4).random(30) if weighted else np.ones(30)
    gone = np.random.default_rng(5).random(table.shape) < 0.1
    changes = {"weights": weights / weights.sum(), "available": ~gone}
    policy = make_policy("ucb-e", batch=batch)
    stepped = run(policy, table, 150, seed=8, **changes)
    start = state_of(np.full(table.shape, np.nan), 8, **changes)
    chosen = policy.replay(start, np.where(gone, np.nan, table), 150)
    replayed = np.full(table.shape, np.nan)
    replayed[chosen.rows, chosen.columns] = table[chosen.rows, chosen.columns]
    np.testing.assert_array_equal(replayed, stepped.scores)
    assert not gone[chosen.rows, chosen.columns].any()


def test_a_replay_of_what_is_all_known_chooses_nothing() -> None:
    table = answers(3, 5)
    assert len(make_policy("ucb-e").replay(state_of(table), table, 4)) == 0


def test_ucb_e_takes_the_largest_bound() -> None:
    scores = np.full((3, 40), np.nan)
    scores[0, :16], scores[1, :4], scores[2, :16] = 0.5, 0.4, 0.55  # bounds .75, .9, .8
    assert (make_policy("ucb-e").select(state_of(scores), 5).rows == 1).all()
    scores[1, :30] = 0.4  # .58 now
    assert (make_policy("ucb-e").select(state_of(scores), 5).rows == 2).all()


def test_ucb_e_excludes_full_rows_and_visits_every_row_first() -> None:
    scores = np.full((5, 6), np.nan)
    scores[0] = 1.0
    first = make_policy("ucb-e", batch=2).select(state_of(scores), 8)
    assert Counter(first.rows.tolist()) == {1: 2, 2: 2, 3: 2, 4: 2}


def test_ties_are_broken_at_random_with_the_recorded_probability() -> None:
    policy = make_policy("ucb-e", batch=1)
    first = [policy.select(state_of(np.full((3, 4), np.nan), seed), 1) for seed in range(300)]
    rows = Counter(int(selection.rows[0]) for selection in first)
    assert all(70 < rows[i] < 130 for i in range(3))
    assert all(selection.probability[0] == pytest.approx(1 / 12) for selection in first)


def test_cells_on_their_way_count_as_asked() -> None:
    scores = np.full((2, 50), np.nan)
    scores[:, :10] = 0.5
    pending = np.zeros(scores.shape, dtype=bool)
    pending[0, 10:40] = True
    assert (make_policy("ucb-e").select(state_of(scores, pending=pending), 4).rows == 1).all()


def test_filled_subset_puts_a_prompt_to_every_method_before_the_next() -> None:
    table = answers(6, 20)
    state = run(make_policy("filled-subset", batch=4), table, 6 * 5 + 2)
    filled = (~np.isnan(state.scores)).sum(axis=0)
    assert sorted(filled)[-6:] == [2, 6, 6, 6, 6, 6]


def test_ucb_e_lrf_warms_up_uniformly_then_takes_one_row_at_a_time() -> None:
    table = answers(20, 100)
    policy = UcbELrfPolicy(members=16, batch=8)
    state = state_of(np.full(table.shape, np.nan), 1)
    warm = policy.select(state, 100)
    assert len(set(warm.rows.tolist())) > 10
    state.scores[warm.rows, warm.columns] = table[warm.rows, warm.columns]
    active = policy.select(state, 24)
    assert [len(set(active.rows[i : i + 8].tolist())) for i in (0, 8, 16)] == [1, 1, 1]


def test_ucb_e_lrf_takes_the_largest_bound_and_the_most_uncertain_columns() -> None:
    policy = UcbELrfPolicy(members=16, eta=2.0, batch=5)
    state = run(policy, answers(20, 100), 300)
    fit = policy.model.fit(state.scores)
    seen = ~np.isnan(state.scores)
    bound = np.where(seen, state.scores, fit.mean + 2.0 * fit.spread).mean(axis=1)
    bound[seen.all(axis=1)] = -np.inf
    chosen = policy.select(state, 5)
    assert set(chosen.rows.tolist()) == {int(bound.argmax())}
    spread = np.where(seen, -1.0, fit.spread)[chosen.rows[0]]
    assert spread[chosen.columns].min() >= np.delete(spread, chosen.columns).max()


def test_score_only_takes_the_same_row_but_any_column() -> None:
    state = run(UcbELrfPolicy(members=16), answers(20, 100), 300)
    full = UcbELrfPolicy(members=16).select(replace(state, rng=np.random.default_rng(0)), 5)
    policy = make_policy("ucb-e-lrf-score-only", members=16)
    others = [policy.select(replace(state, rng=np.random.default_rng(s)), 5) for s in range(6)]
    assert all((other.rows == full.rows).all() for other in others)
    assert len({tuple(other.columns) for other in others}) == 6


def test_parked_cells_leave_their_weight_to_the_others() -> None:
    scores = np.array([[1.0, np.nan, 0.0, 0.0]])
    available = np.array([[True, False, True, True]])
    weights = row_weights(state_of(scores, available=available))
    np.testing.assert_allclose(weights, [[1 / 3, 0.0, 1 / 3, 1 / 3]])


@pytest.mark.parametrize("rows", [2, 5, 60])
def test_probability_of_being_the_best_agrees_with_draws(rows: int) -> None:
    rng = np.random.default_rng(rows)
    mean, std = rng.normal(0.6, 0.05, rows), rng.uniform(0.0, 0.1, rows)
    draws = (mean + std * rng.standard_normal((100_000, rows))).argmax(axis=1)
    share = np.bincount(draws, minlength=rows) / 100_000
    np.testing.assert_allclose(probability_best(mean, std), share, atol=0.006)


@pytest.mark.parametrize(
    ("name", "params"),
    [("ucb-e", {"a": -1}), ("ucb-e", {"batch": 0}), ("ucb-e-lrf", {"warmup": 0}), ("lrf", {"batch": 0})],
)
def test_impossible_settings_are_refused(name: str, params: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match=name):
        make_policy(name, **params)
