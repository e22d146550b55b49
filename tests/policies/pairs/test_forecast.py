"""The forecast policy: what it learns of other pairs, and what its posterior promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from assay.errors import UsageError
from policies.pairs import PairHistory, PairProblem, make_pair_policy
from policies.pairs._moments import factor_model, fit_forecast, mixed_factors, verdict_moments
from tests.policies.pairs.factory import N, answers, history, problem


def planted(n_methods: int = 30, n_prompts: int = 200, seed: int = 0) -> np.ndarray:
    """Scores by one ability and two tastes that prompts share."""
    rng = np.random.default_rng(seed)
    tastes, prompts = rng.normal(size=(n_methods, 2)), rng.normal(size=(n_prompts, 2))
    noise = rng.normal(size=(n_methods, n_prompts))
    return np.asarray(0.5 * rng.normal(size=(n_methods, 1)) + tastes @ prompts.T + noise)


@pytest.mark.parametrize("left_out", [(), (3,), (0, 5), tuple(range(8))])
def test_moments_are_those_of_the_kept_pairs(left_out: tuple[int, ...]) -> None:
    given = history().without(left_out)
    rows = given.scores[given.kept]
    pairs = [np.nan_to_num(np.sign(a - b)) for a, b in combinations(rows, 2)]
    expected = np.mean([np.outer(v, v) for v in pairs], axis=0)
    np.testing.assert_allclose(verdict_moments(given), expected, atol=1e-9)


def test_a_factor_model_finds_planted_factors() -> None:
    loadings = np.random.default_rng(1).normal(size=(50, 2)) * 0.5
    own = np.full(50, 0.4)
    found, left = factor_model(loadings @ loadings.T + np.diag(own), 2)
    np.testing.assert_allclose(found @ found.T, loadings @ loadings.T, atol=0.02)
    np.testing.assert_allclose(left, own, atol=0.02)


def test_mixed_factors_keep_the_variance_of_each_prompt() -> None:
    moments = verdict_moments(PairHistory(planted()))
    factors, own = mixed_factors(moments, 4)
    assert (own > 0).all()
    np.testing.assert_allclose((factors**2).sum(axis=1) + own, np.diag(moments), atol=0.1)


def test_features_that_decide_are_learned_and_the_pairs_methods_held_out() -> None:
    found = fit_forecast(history())
    assert found is not None
    assert found.error < found.spread
    assert abs(found.weights[0]) > 3 * np.abs(found.weights[1:]).max()
    assert fit_forecast(history().without(range(4))) is None  # four methods with features are too few


def test_history_beats_votes_where_prompts_share_tastes() -> None:
    scores = planted(60)
    errors: dict[str, list[float]] = {"forecast": [], "random": []}
    for pair in combinations(range(8), 2):
        verdicts = np.sign(scores[pair[0]] - scores[pair[1]])
        for name, errs in errors.items():
            policy = make_pair_policy(name)
            policy.prepare(PairHistory(scores).without(pair))
            found = policy.plan(PairProblem(len(verdicts), rng_seed=pair)).verdict(verdicts, 10)
            errs.append((found.distance - verdicts.mean()) ** 2)
    assert np.mean(errors["forecast"]) < 0.7 * np.mean(errors["random"])


def test_without_history_prompts_are_drawn_at_random_and_the_majority_wins() -> None:
    policy = make_pair_policy("forecast")
    plan, other = policy.plan(problem()), policy.plan(problem(1))
    assert plan.sample(10).tolist() != other.sample(10).tolist()
    verdicts = answers()
    for k in (5, 9, 21):
        asked = plan.sample(k)
        majority = np.sign(verdicts[asked].sum())
        assert plan.verdict(verdicts, k).winner in (majority, np.sign(verdicts[asked].mean()))


def test_a_foretold_distance_moves_the_prior_and_narrows_it() -> None:
    policy = make_pair_policy("forecast")
    policy.prepare(history())
    ahead = replace(problem(), features=np.tile([2.0, 0.0, 0.0, 0.0], (N, 1)))
    blind = replace(problem(), features=None)
    none = np.full(N, np.nan)
    told, untold = policy.plan(ahead).verdict(none, 1), policy.plan(blind).verdict(none, 1)
    assert told.distance > untold.distance + 0.05
    assert told.high - told.low < untold.high - untold.low


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="rank >= 1"):
        make_pair_policy("forecast", rank=0)
