"""Betting on draws without replacement: errors stay at most what was promised, however one stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.pairs import Bets, Draws, bets_for, confidence_bounds, log_capital

Floats = np.ndarray


def votes(mean: float, ties: float, n: int, rng: np.random.Generator) -> Floats:
    """N verdicts of about this mean, `ties` of them 0."""
    decided = round(n * (1 - ties))
    wins = round(decided * (1 + mean) / 2)
    values = np.concatenate([np.ones(wins), -np.ones(decided - wins), np.zeros(n - decided)])
    return rng.permutation(values)


def drawn(values: Floats, controls: Floats | None, rng: np.random.Generator, k: int) -> Draws:
    order = rng.permutation(len(values))[:k]
    if controls is None:
        return Draws(values[order], len(values))
    centered = controls - controls.mean()
    return Draws(values[order], len(values), centered[order], float(np.ptp(controls)))


@pytest.mark.parametrize("ties", [0.0, 0.5])
@pytest.mark.parametrize("helpful", [None, 0.0, 0.6, -0.6])
@pytest.mark.parametrize("expected", [0.0, 0.7])
def test_a_wrong_winner_is_named_as_seldom_as_promised_whenever_one_stops(
    ties: float, helpful: float | None, expected: float
) -> None:
    """The largest capital ever seen is what the best moment to stop would have found."""
    rng = np.random.default_rng(7)
    values, runs, error = votes(0.0, ties, 120, rng), 1500, 0.1
    controls = None if helpful is None else helpful * values + 0.5 * rng.normal(size=len(values))
    bets = bets_for(expected, 0.4)
    wrong = 0
    for _ in range(runs):
        capital = log_capital(drawn(values, controls, rng, 119), bets)
        wrong += capital.max() >= np.log(1 / error)
    assert wrong / runs <= error + 2 * np.sqrt(error * (1 - error) / runs)


def test_the_interval_holds_at_every_look_at_once() -> None:
    rng = np.random.default_rng(3)
    values, runs, missed = votes(0.3, 0.1, 100, rng), 150, 0
    controls = 0.3 * values + 0.3 * rng.normal(size=100)
    for _ in range(runs):
        whole = drawn(values, controls, rng, 100)
        assert whole.controls is not None
        inside = True
        for k in (3, 8, 15, 30, 50, 75, 99, 100):
            draws = Draws(whole.values[:k], 100, whole.controls[:k], whole.span)
            low, high = confidence_bounds(draws, 0.2, bets_for(), bets_for())
            inside &= low - 1e-9 <= values.mean() <= high + 1e-9
        missed += not inside
    assert missed / runs <= 0.2 + 2 * np.sqrt(0.16 / runs)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=9),
    st.integers(0, 4),
    st.floats(-1, 1),
    st.integers(0, 2**32 - 1),
)
def test_the_capital_is_a_fair_game(seen: list[float], more: int, null: float, seed: int) -> None:
    """Averaged over what the next draw may be, the capital stays what it is, where the null is the mean."""
    rng = np.random.default_rng(seed)
    rest = rng.choice([-1.0, 0.0, 1.0], size=more + 2)
    values = np.concatenate([seen, rest])
    controls = rng.normal(size=len(values))
    controls -= controls.mean()
    bets = bets_for(null)
    k, n = len(seen), len(values)

    def capital(order: list[int]) -> float:
        draws = Draws(values[order], n, controls[order], float(np.ptp(controls)))
        return float(np.exp(log_capital(draws, bets, null=float(values.mean()))[-1]))

    before = list(range(k))
    mean = np.mean([capital([*before, j]) for j in range(k, n)])
    assert mean == pytest.approx(capital(before), rel=1e-9)


def test_controls_that_foretell_the_verdicts_need_fewer_draws() -> None:
    rng = np.random.default_rng(1)
    values = votes(0.12, 0.0, 1000, rng)
    controls = 0.9 * values + 0.2 * rng.normal(size=1000)
    needed: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(30):
        order = rng.integers(2**31)
        for using in needed:
            draws = drawn(values, controls if using else None, np.random.default_rng(order), 999)
            over = log_capital(draws, bets_for(0.1, 0.1)) >= np.log(10)
            needed[using].append(int(over.argmax()) if over.any() else 999)
    assert np.mean(needed[True]) < 0.6 * np.mean(needed[False])


def test_draws_that_decide_alone_leave_no_doubt_and_unanimous_ones_little() -> None:
    assert log_capital(Draws(np.ones(6), 10), bets_for())[-1] == np.inf
    assert log_capital(Draws(np.ones(8), 500), bets_for())[-1] > np.log(10)
    assert log_capital(Draws(-np.ones(8), 500), bets_for())[-1] < 0
    assert len(log_capital(Draws(np.zeros(0), 10), bets_for())) == 0
    assert confidence_bounds(Draws(np.zeros(0), 10), 0.1, bets_for(), bets_for()) == (-1.0, 1.0)


def test_shares_sum_to_one_whatever_is_expected() -> None:
    for expected in (-5.0, 0.0, 0.3, 5.0):
        bets: Bets = bets_for(expected, 0.2)
        assert bets.shares.sum() == pytest.approx(1.0)
        assert (bets.shares > 0).all()
