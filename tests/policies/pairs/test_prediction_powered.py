"""Predicted verdicts as controls: learned from other methods, unbiased whatever they are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.errors import UsageError
from policies.pairs import (
    IterativeRule,
    PairHistory,
    PairProblem,
    RandomPlan,
    make_pair_policy,
    run_iteratively,
)
from policies.pairs._predicted import Foretold, PairPredictor
from tests.policies.pairs.factory import N, answers, history, problem

NAMES = ("random:heuristic", "random:anytime", "prediction-powered:heuristic", "prediction-powered:anytime")


def lengthy(n_methods: int = 12, n_prompts: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that go by length, within and between methods, and the features that say so."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_methods, n_prompts, 3))
    features[:, :, 0] += rng.normal(size=(n_methods, 1))
    return features[:, :, 0] + 0.7 * rng.normal(size=features.shape[:2]), features


def lengthy_pair() -> tuple[PairHistory, PairProblem, np.ndarray]:
    scores, features = lengthy()
    past = PairHistory(scores[2:], tuple(range(10)), features[2:])
    verdicts = np.sign(scores[0] - scores[1])
    return past, PairProblem(len(verdicts), features=features[:2]), verdicts


def test_answers_that_win_elsewhere_are_predicted_to_win() -> None:
    past, pair, verdicts = lengthy_pair()
    predictor = PairPredictor.fit(past)
    assert predictor is not None
    found = predictor.foretell(pair)
    assert found.controls.mean() == pytest.approx(0.0, abs=1e-12)
    assert np.corrcoef(found.controls, verdicts)[0, 1] > 0.5
    slope = np.polyfit(found.controls, verdicts, 1)[0]
    assert 0.6 < slope < 1.6  # predictions have the size of verdicts
    assert found.variance is not None
    assert abs(found.distance - verdicts.mean()) < 3 * np.sqrt(found.variance)


def test_answers_like_those_that_won_are_predicted_to_win() -> None:
    """Only the likeness says which answers are right."""
    rng = np.random.default_rng(3)
    right = rng.random((14, 400)) < rng.uniform(0.3, 0.7, size=(14, 1))
    alike = np.where(right[:, None] == right[None], 0.9, 0.3).astype(np.float32)
    scores, features = right + 0.01 * rng.normal(size=right.shape), rng.normal(size=(14, 400, 3))
    past = PairHistory(scores[2:], tuple(range(12)), features[2:], alike[2:, 2:])
    predictor = PairPredictor.fit(past)
    assert predictor is not None
    pair = PairProblem(400, features=features[:2], likeness=alike[:2, 2:])
    controls = predictor.foretell(pair).controls
    first_only, second_only = right[0] & ~right[1], right[1] & ~right[0]
    assert controls[first_only].mean() > controls[second_only].mean() + 0.5


def test_left_out_methods_teach_nothing() -> None:
    given = history()
    changed = given.scores.copy()
    changed[[1, 4]] = np.random.default_rng(8).normal(size=(2, N))
    found = [
        PairPredictor.fit(
            PairHistory(scores, given.described, given.features, given.likeness).without((1, 4))
        )
        for scores in (given.scores, changed)
    ]
    assert found[0] is not None
    assert found[1] is not None
    np.testing.assert_array_equal(found[0].weights, found[1].weights)
    assert PairPredictor.fit(given.without((0, 1, 2))) is None  # five described methods are too few


def test_without_history_it_is_random() -> None:
    plan, base = (
        make_pair_policy(f"{name}:heuristic").plan(problem()) for name in ("prediction-powered", "random")
    )
    for k in (3, 9, 21):
        np.testing.assert_array_equal(plan.sample(k), base.sample(k))
        assert plan.verdict(answers(), k) == base.verdict(answers(), k)


@pytest.mark.parametrize("help_", [0.0, 0.8, -0.8])
# With five verdicts a normal interval is too narrow for controls that are mere noise.
@pytest.mark.parametrize(("k", "least"), [(5, 0.87), (20, 0.92), (80, 0.93)])
def test_the_estimate_is_unbiased_and_its_interval_covers_whatever_the_controls_are(
    help_: float, k: int, least: float
) -> None:
    rng = np.random.default_rng(2)
    verdicts = np.sign(rng.normal(0.3, 1.0, 300))
    controls = help_ * verdicts + 0.4 * rng.normal(size=300)
    plan = RandomPlan(rng, Foretold(controls - controls.mean()), "heuristic")
    drawn = np.array([rng.permutation(300)[:k] for _ in range(4000)])
    mean, error = plan.estimate(verdicts[drawn], drawn)
    assert mean.mean() == pytest.approx(verdicts.mean(), abs=0.02)
    covered = (np.abs(mean - verdicts.mean()) <= 1.96 * error).mean()
    assert least <= covered <= 0.999
    one = plan.redrawn(np.random.default_rng(5))
    asked = np.full(300, np.nan)
    asked[one.sample(k)] = verdicts[one.sample(k)]
    assert one.verdict(asked, k).distance == pytest.approx(
        float(one.estimate(verdicts[one.sample(k)], one.sample(k))[0])
    )


def test_good_controls_narrow_the_interval() -> None:
    past, pair, verdicts = lengthy_pair()
    errors = {}
    for name in ("random", "prediction-powered"):
        policy = make_pair_policy(name)
        policy.prepare(past)
        plan = policy.plan(pair)
        assert isinstance(plan, RandomPlan)
        drawn = np.array([plan.redrawn(np.random.default_rng(i)).sample(60) for i in range(200)])
        errors[name] = float(((plan.estimate(verdicts[drawn], drawn)[0] - verdicts.mean()) ** 2).mean())
    assert errors["prediction-powered"] < 0.8 * errors["random"]


def test_what_is_foretold_decides_where_verdicts_do_not() -> None:
    for distance in (0.5, -0.5):
        plan = RandomPlan(np.random.default_rng(0), Foretold(np.zeros(100), distance, 0.05), "heuristic")
        verdicts = np.full(100, np.nan)
        verdicts[plan.sample(10)] = np.tile([1.0, -1.0], 5)
        verdict = plan.verdict(verdicts, 10)
        assert verdict.winner == np.sign(distance)
        assert verdict.risk > 0.2
        assert verdict.distance == 0.0  # the estimate itself is not shrunk


@pytest.mark.parametrize("name", ["random:anytime", "prediction-powered:anytime"])
def test_stopping_at_a_risk_errs_at_most_that_often_for_close_pairs(name: str) -> None:
    """Every order of one close pair, looked at after each verdict."""
    past, pair, _ = lengthy_pair()
    rng = np.random.default_rng(4)
    verdicts = rng.permutation(np.repeat([1.0, -1.0], [148, 152]))
    policy = make_pair_policy(name)
    policy.prepare(past)
    plan = policy.plan(pair)
    assert isinstance(plan, RandomPlan)
    runs = [
        run_iteratively(plan.redrawn(np.random.default_rng([1, i])), verdicts, IterativeRule(0.2, 1, 100, 4))
        for i in range(150)
    ]
    wrong = np.mean([run.winner == 1 for run in runs])
    assert wrong <= 0.2 + 2 * np.sqrt(0.16 / len(runs))


def test_refused_verdicts_leave_the_promise_standing() -> None:
    plan = make_pair_policy("random:anytime").plan(problem())
    verdicts = np.ones(N)
    verdicts[plan.sample(8)[1:6]] = np.nan
    found = plan.verdict(verdicts, 8)
    assert (found.a, found.risk_kind) == (3, "anytime")
    assert found.risk > plan.verdict(np.ones(N), 3).risk * 0.5
    assert found.low <= found.distance <= found.high


@pytest.mark.parametrize("name", NAMES)
def test_rules_are_named_after_a_colon(name: str) -> None:
    policy = make_pair_policy(name)
    assert f"{policy.name}:{policy.params()['stop']}" == name
    found = policy.plan(replace(problem(), features=None)).verdict(answers(), 9)
    assert found.risk_kind == name.partition(":")[2]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="no stopping rule 'sometimes'"):
        make_pair_policy("random:sometimes")
    with pytest.raises(UsageError, match="takes no options"):
        make_pair_policy("max-norm:ward")
