"""What must hold of every registered policy; a new one is covered by being registered."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError, UsageError
from policies import POLICIES, PolicyState, Selection, make_policy
from tests.policies.factory import N_PROMPTS, SMALL, build_policy, make_state, twins

pytestmark = pytest.mark.parametrize("name", POLICIES.names())

SITUATIONS = {
    "nothing known": {},
    "some known": {"known": 5},
    "pending and parked": {"known": 4, "pending": 3, "unavailable": 6},
    "all but one known": {"known": N_PROMPTS - 1},
    "one left among pending": {"known": 10, "pending": N_PROMPTS - 11},
    "many rows": {"rows": 3, "known": 4, "pending": 2, "unavailable": 2},
}


#: What chooses by an expected gain chooses by gain per cost; the others draw, cluster or count.
WEIGH_COSTS = {
    "uncertainty",
    "information-gain",
    "expected-variance-reduction",
    "static-design",
    "ppo",
}


def cells(selection: Selection) -> list[tuple[int, int]]:
    return list(zip(selection.rows.tolist(), selection.columns.tolist(), strict=True))


def check(state: PolicyState, selection: Selection, n: int) -> None:
    chosen = cells(selection)
    assert len(chosen) <= n
    assert len(set(chosen)) == len(chosen)
    assert all(state.candidates[cell] for cell in chosen)
    assert len(selection.probability) == len(selection.gain) == len(chosen)
    drawn = selection.probability[~np.isnan(selection.probability)]
    assert ((drawn > 0) & (drawn <= 1)).all()


@pytest.mark.parametrize("n", [1, 5, 100])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_chooses_only_candidates_and_never_one_twice(name: str, situation: str, n: int) -> None:
    state = make_state(**SITUATIONS[situation])
    selection = build_policy(name).select(state, n)
    check(state, selection, n)
    assert len(selection) == min(n, int(state.candidates.sum()))


def test_nothing_left_gives_an_empty_selection(name: str) -> None:
    assert len(build_policy(name).select(make_state(known=N_PROMPTS), 3)) == 0
    assert len(build_policy(name).select(make_state(known=4, pending=N_PROMPTS - 4), 3)) == 0


def test_asking_for_none_gives_none_and_for_fewer_is_refused(name: str) -> None:
    assert len(build_policy(name).select(make_state(), 0)) == 0
    with pytest.raises(BadInputError, match="cannot select -1"):
        build_policy(name).select(make_state(), -1)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_state_and_seed_same_answer_in_a_fresh_object_too(name: str, situation: str) -> None:
    policy = build_policy(name)
    first = policy.select(make_state(**SITUATIONS[situation]), 4)
    policy.select(make_state(known=9), 2)  # what it was asked in between must not matter
    for other in (policy, build_policy(name)):
        again = other.select(make_state(**SITUATIONS[situation]), 4)
        assert cells(again) == cells(first)
        np.testing.assert_allclose(again.probability, first.probability)


def test_leaves_the_state_as_it_was(name: str) -> None:
    state = make_state(known=5, pending=2, unavailable=2)
    before = [x.copy() for x in (state.scores, state.pending, state.available, state.cost, state.weights)]
    build_policy(name).select(state, 6)
    after = (state.scores, state.pending, state.available, state.cost, state.weights)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))


def test_acquires_everything_in_batches_without_repeating(name: str) -> None:
    policy, state = build_policy(name), make_state(rows=2, total=2 * N_PROMPTS)
    asked = 0
    while len(selection := policy.select(state, 7)):
        check(state, selection, 7)
        state.pending[selection.rows, selection.columns] = True
        asked += len(selection)
        if asked % 2:  # half of the batches get their answers before the next is chosen
            state.scores[state.pending] = 1.0
            state.pending[:] = False
    assert asked == 2 * N_PROMPTS


def test_works_without_knowing_the_total(name: str) -> None:
    state = make_state(known=3, total=0)
    check(state, selection := build_policy(name).select(state, 5), 5)
    assert len(selection) == 5


def test_takes_unequal_costs(name: str) -> None:
    cost = np.random.default_rng(3).lognormal(0.0, 2.0, (2, N_PROMPTS))
    state = make_state(rows=2, known=4, cost=cost)
    check(state, build_policy(name).select(state, 6), 6)


def test_only_ratios_of_costs_matter(name: str) -> None:
    cost = np.random.default_rng(3).lognormal(0.0, 1.0, (1, N_PROMPTS))
    policy = build_policy(name)
    first, second = (policy.select(make_state(known=4, cost=factor * cost), 6) for factor in (1.0, 250.0))
    assert cells(second) == cells(first)


@pytest.mark.parametrize("dear", [0, 1])
def test_of_two_prompts_that_gain_the_same_a_dynamic_policy_takes_the_cheaper(name: str, dear: int) -> None:
    if name not in WEIGH_COSTS:
        pytest.skip("does not choose by what it expects of a prompt")
    history, estimator = twins()
    policy = make_policy(name, **SMALL.get(name, {}))
    policy.prepare(history, estimator)
    cost, only = np.ones((1, N_PROMPTS)), np.zeros((1, N_PROMPTS), dtype=bool)
    cost[0, dear], only[0, :2] = 1.5, True
    state = make_state(cost=cost, available=only, estimator=estimator, embeddings=history.embeddings)
    assert policy.select(state, 1).columns.tolist() == [1 - dear]


def test_choices_that_depend_on_the_generator_record_their_probability(name: str) -> None:
    policy = build_policy(name)
    chosen = [policy.select(make_state(rng=np.random.default_rng(seed)), 6) for seed in range(8)]
    if any(cells(selection) != cells(chosen[0]) for selection in chosen):
        assert all(np.isfinite(selection.probability).all() for selection in chosen)


def test_many_studies_at_once_choose_as_one_at_a_time(name: str) -> None:
    policy = build_policy(name)
    settings = [{"known": 5, "seed": 1}, {"known": 5, "seed": 2}, {"known": 7, "pending": 2, "seed": 3}]
    together = policy.select_each([make_state(**s) for s in settings], 3)
    for selection, setting in zip(together, settings, strict=True):
        assert cells(selection) == cells(policy.select(make_state(**setting), 3))


def test_finished_studies_among_many_choose_nothing(name: str) -> None:
    states = [make_state(known=5), make_state(known=N_PROMPTS)]
    assert [len(s) for s in build_policy(name).select_each(states, 2)] == [2, 0]


def test_missing_estimator_is_refused_clearly_where_one_is_needed(name: str) -> None:
    policy = build_policy(name)
    state = make_state(known=3, estimator=None)
    if policy.needs_estimator:
        with pytest.raises(BadInputError, match=f"policy '{name}' needs an estimator"):
            policy.select(state, 2)
    else:
        check(state, policy.select(state, 2), 2)


def test_can_be_rebuilt_from_its_recorded_settings(name: str) -> None:
    policy = make_policy(name, seed=5)
    assert policy.name == name
    assert type(policy)(**policy.params()).params() == policy.params()


def test_a_misspelt_name_lists_the_known_ones_and_the_nearest(name: str) -> None:
    with pytest.raises(UsageError, match="unknown policy") as caught:
        make_policy(name + "x")
    assert f"did you mean '{name}'" in caught.value.hint
    assert all(known in caught.value.hint for known in POLICIES.names())
