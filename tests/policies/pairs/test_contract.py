"""What must hold of every registered pair policy; a new one is covered by being registered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.errors import BadInputError, UsageError
from policies.pairs import PAIR_POLICIES, IterativeRule, make_pair_policy, progress, run_iteratively
from tests.policies.pairs.factory import N, answers, build, problem

pytestmark = pytest.mark.parametrize("name", PAIR_POLICIES.names())


@pytest.mark.parametrize("k", [1, 2, 7, N - 1, N, N + 5])
def test_a_sample_holds_k_distinct_prompts(name: str, k: int) -> None:
    sample = build(name).plan(problem()).sample(k)
    assert len(set(sample.tolist())) == len(sample) == min(k, N)
    assert ((sample >= 0) & (sample < N)).all()


def test_the_same_problem_gives_the_same_plan(name: str) -> None:
    policy = build(name)
    first = policy.plan(problem())
    policy.plan(problem(1)).sample(9)
    for plan in (policy.plan(problem()), build(name).plan(problem())):
        np.testing.assert_array_equal(plan.sample(9), first.sample(9))
        assert plan.verdict(answers(), 9) == first.verdict(answers(), 9)


def test_swapping_the_methods_turns_the_verdict_round(name: str) -> None:
    given = problem()
    assert given.features is not None
    assert given.likeness is not None
    turned = replace(
        given,
        first=given.second,
        second=given.first,
        features=given.features[::-1],
        likeness=given.likeness[::-1],
    )
    policy = build(name)
    k = N  # the samples of fewer may differ where a draw is involved
    one, other = policy.plan(given).verdict(answers(), k), policy.plan(turned).verdict(-answers(), k)
    assert other.distance == pytest.approx(-one.distance, abs=1e-9)
    assert (other.a, other.b, other.ties) == (one.b, one.a, one.ties)


def test_all_verdicts_give_the_true_distance_and_no_risk(name: str) -> None:
    found = build(name).plan(problem()).verdict(answers(), N)
    assert found.distance == pytest.approx(answers().mean())
    assert found.low == pytest.approx(found.high, abs=1e-6)
    assert found.risk < 1e-6


@pytest.mark.parametrize("k", [1, 5, 20])
def test_verdicts_are_within_bounds_and_without_any_nothing_is_claimed(name: str, k: int) -> None:
    plan = build(name).plan(problem())
    found = plan.verdict(answers(), k)
    assert -1 <= found.low <= found.distance <= found.high <= 1
    assert 0 <= found.risk <= 1
    assert found.a + found.b + found.ties == len(plan.sample(k))
    blank = plan.verdict(np.full(N, np.nan), k)
    assert (blank.a, blank.b, blank.ties) == (0, 0, 0)
    assert blank.risk > 0.01


def test_iterating_buys_no_verdict_twice_and_ends(name: str) -> None:
    plan, rule = build(name).plan(problem()), IterativeRule(0.05, 5, 30)
    verdicts, asked = np.full(N, np.nan), 0
    while (now := progress(plan, verdicts, rule)).winner is None:
        assert len(now.missing)
        assert np.isnan(verdicts[now.missing]).all()
        verdicts[now.missing] = answers()[now.missing]
        asked += len(now.missing)
    assert asked == now.bought <= 30
    assert run_iteratively(plan, answers(), rule).bought == asked


def test_a_clear_winner_is_named_early(name: str) -> None:
    over = run_iteratively(build(name).plan(problem()), np.ones(N), IterativeRule(0.1, 5, 40))
    assert over.winner == 1
    assert over.bought < 40


def test_missing_vectors_are_refused(name: str) -> None:
    policy = build(name)
    bare = replace(problem(), first=None, second=None, inputs=None)
    if policy.uses_vectors or policy.uses_inputs:
        with pytest.raises(BadInputError, match=f"'{name}' needs the"):
            policy.plan(bare)
    else:
        assert len(policy.plan(bare).sample(4)) == 4


def test_rebuilt_from_its_parameters_and_misspelt_names_are_helped(name: str) -> None:
    policy = make_pair_policy(name)
    assert type(policy)(**policy.params()).params() == policy.params()
    with pytest.raises(UsageError, match="unknown pair policy") as caught:
        make_pair_policy(name + "x")
    assert f"did you mean '{name}'" in caught.value.hint
