"""How hard a choice is, and what is advised."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from policies import Recommendation
from policies.hardness import advise, best_exploration, expected_regret, hardness, success_bound


def belief(*means: float) -> Recommendation:
    mean = np.array(means)
    return Recommendation(mean, np.zeros(len(mean)), mean / mean.sum())


def test_hardness_sums_inverse_squared_gaps() -> None:
    assert hardness(np.array([0.5, 0.9, 0.7])) == pytest.approx(1 / 0.4**2 + 1 / 0.2**2)


def test_equal_methods_are_hard_but_not_infinitely() -> None:
    assert hardness(np.array([0.5, 0.5])) == pytest.approx(1e8)


@pytest.mark.parametrize("means", [[0.5], [0.5, np.nan], [[0.5, 0.6]]])
def test_hardness_refuses_what_it_cannot_judge(means: list[float]) -> None:
    with pytest.raises(BadInputError, match="two methods or more"):
        hardness(np.array(means))


def test_the_guarantee_grows_with_the_budget_and_says_nothing_below() -> None:
    assert success_bound(100.0, 10, 1000) == 0.0
    assert success_bound(100.0, 10, 50_000) > 0.99
    assert best_exploration(100.0, 10, 10 + 144) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rows", "known", "policy"),
    [
        (400, None, "top-two"),
        (0, None, "ucb-e"),
        (0, belief(0.9, 0.5, 0.4), "ucb-e"),
        (0, belief(0.9, 0.895, 0.4), "ucb-e-lrf"),
        (0, belief(0.9, 0.892, 0.4), "ucb-e"),
    ],
)
def test_advice_follows_history_and_hardness(rows: int, known: Recommendation | None, policy: str) -> None:
    advice = advise(history_rows=rows, linearizes=True, belief=known)
    assert advice.policy == policy
    assert advice.reason


def test_history_that_the_estimator_cannot_use_is_no_reason_for_top_two() -> None:
    assert advise(history_rows=400, linearizes=False).policy == "ucb-e"


@pytest.mark.parametrize("rows", [2, 30])
def test_expected_regret_agrees_with_draws(rows: int) -> None:
    rng = np.random.default_rng(rows)
    mean, std = rng.normal(0.6, 0.05, rows), rng.uniform(0.0, 0.1, rows)
    draws = mean + std * rng.standard_normal((200_000, rows))
    opinion = Recommendation(mean, std, np.full(rows, 1.0 / rows))
    truth = (draws.max(axis=1) - draws[:, opinion.best]).mean()
    assert expected_regret(opinion) == pytest.approx(truth, abs=1e-3)


def test_nothing_is_regretted_where_all_is_known() -> None:
    assert expected_regret(belief(0.9, 0.5)) == pytest.approx(0.0, abs=1e-6)
