"""Choosing cells for a distribution of scores: balanced sampling, and cells for quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from policies import make_policy
from tests.policies.factory import N_PROMPTS, build_policy, make_state


def test_rows_and_prompts_are_evaluated_equally_often() -> None:
    chosen = make_policy("balanced").select(make_state(rows=6), 72)
    by_row, by_column = np.bincount(chosen.rows), np.bincount(chosen.columns)
    assert set(by_row) == {12}
    assert set(by_column) == {72 // N_PROMPTS}


def test_what_is_known_or_pending_counts() -> None:
    state = make_state(rows=3)
    state.scores[0, :6] = 1.0
    state.pending[1, :4] = True
    chosen = make_policy("balanced").select(state, 8)
    assert np.bincount(chosen.rows, minlength=3).tolist() == [0, 2, 6]
    assert chosen.columns.min() >= 6  # the others have the fewest evaluations


def test_rows_that_may_be_at_a_quantile_get_more() -> None:
    rng = np.random.default_rng(0)
    state = make_state(rows=20)
    level = np.linspace(0.02, 0.98, 20)
    state.scores[:, ::2] = rng.random((20, N_PROMPTS // 2)) < level[:, None]
    extreme = build_policy("quantile-variance")
    extreme = type(extreme)(quantiles=(0.05,), batch=20)
    chosen = np.bincount(extreme.select(state, 40).rows, minlength=20)
    assert chosen[:5].sum() > chosen[-5:].sum()


def test_impossible_quantiles_are_refused() -> None:
    with pytest.raises(BadInputError, match="quantiles"):
        make_policy("quantile-variance", quantiles=(0.0, 0.5))
