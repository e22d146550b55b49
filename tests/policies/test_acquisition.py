"""Live studies and backtests see the same state, whatever happened in between."""

from __future__ import annotations

import numpy as np
import pytest

from policies.acquisition import batch_size, build_state, step_generator

COMMON = {"weights": np.full(6, 1 / 6), "dataset_index": np.zeros(6, dtype=np.intp), "estimator": None}


def test_generator_depends_on_seed_cells_asked_and_methods_only() -> None:
    draw = step_generator(3, 10, ("m",)).random(4)
    np.testing.assert_array_equal(step_generator(3, 10, ("m",)).random(4), draw)
    for other in (
        step_generator(4, 10, ("m",)),
        step_generator(3, 11, ("m",)),
        step_generator(3, 10, ("n",)),
    ):
        assert not np.array_equal(other.random(4), draw)
    plain = np.random.default_rng([3, 10]).random(4)
    np.testing.assert_array_equal(step_generator(3, 10).random(4), plain)


def test_known_and_pending_cells_count_as_asked() -> None:
    scores = np.array([1.0, np.nan, np.nan, 0.0, np.nan, np.nan])
    pending = np.array([False, True, False, False, False, False])
    state = build_state(scores, seed=5, methods=("m",), pending=pending, **COMMON)
    np.testing.assert_array_equal(state.rng.random(3), step_generator(5, 3, ("m",)).random(3))
    np.testing.assert_array_equal(state.candidates, [[False, False, True, False, True, True]])


def test_fills_in_costs_and_availability() -> None:
    scores = np.full((2, 6), np.nan)
    state = build_state(scores, seed=0, methods=("a", "b"), total=4, cost=np.arange(1.0, 7.0), **COMMON)
    assert state.total == 4
    assert state.available.all()
    assert not state.pending.any()
    np.testing.assert_array_equal(state.cost, [np.arange(1.0, 7.0)] * 2)


@pytest.mark.parametrize(("asked", "expected"), [(0, 10), (20, 5), (25, 0), (30, 0)])
def test_last_batch_is_what_the_budget_leaves(asked: int, expected: int) -> None:
    assert batch_size(asked, total=25, batch=10) == expected
