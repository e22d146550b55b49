"""The best template by sequential elimination, and the baselines that see template features alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.backtest.best import BestTruth, replay_best
from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from policies import make_policy
from policies._sequential_elimination import TripleGsePolicy, _round
from tests.policies.factory import make_state

NAMES = ("sequential-elimination", "triple-gse", "triple-mlp-gse")


def templates(seed: int = 0, rows: int = 16, prompts: int = 40) -> ScoreMatrix:
    rng = np.random.default_rng(seed)
    level, easiness = rng.normal(0.0, 0.7, (rows, 1)), rng.normal(0.0, 1.5, prompts)
    chance = 1.0 / (1.0 + np.exp(-(level + easiness)))
    return ScoreMatrix.build((rng.random(chance.shape) < chance).astype(float))


def test_rounds_halve_the_rows_and_end_at_two() -> None:
    assert [_round(16, asked, 400) for asked in (0, 99, 100, 200, 300, 399)] == [
        (16, 100),
        (16, 100),
        (8, 200),
        (4, 300),
        (2, 400),
        (2, 400),
    ]
    assert _round(2, 0, 10) == (2, 10)


@pytest.mark.parametrize("name", NAMES)
def test_later_cells_go_to_the_better_rows(name: str) -> None:
    matrix = templates()
    policy = make_policy(name)
    state = make_state(rows=1)
    shape = matrix.values.shape
    state = replace(
        state,
        scores=np.full(shape, np.nan),
        pending=np.zeros(shape, dtype=bool),
        available=np.ones(shape, dtype=bool),
        cost=np.ones(shape),
        weights=matrix.weights,
        dataset_index=matrix.dataset_index,
        total=320,
        estimator=None,
    )
    for _ in range(8):
        chosen = policy.select(state, 40)
        state.scores[chosen.rows, chosen.columns] = matrix.values[chosen.rows, chosen.columns]
    count, truth = (~np.isnan(state.scores)).sum(axis=1), matrix.values.mean(axis=1)
    assert count.sum() == 320
    assert truth[np.argsort(-count)[:4]].mean() > truth.mean()


def test_regret_is_small_with_a_quarter_of_the_cells() -> None:
    regrets = []
    for seed in range(4):
        matrix = templates(seed)
        (entry,) = replay_best(
            make_policy("sequential-elimination"), matrix, BestTruth.of(matrix), shares=[0.25], seed=seed
        )
        assert entry["used"] == pytest.approx(0.25)
        regrets.append(entry["regret"])
    assert np.mean(regrets) < 0.08


def test_features_are_what_triple_goes_by() -> None:
    state = make_state(rows=6, known=6)
    features = np.repeat(np.eye(2), 3, axis=0)
    mean = TripleGsePolicy()._scores(replace(state, row_features=features)).mean
    assert len(np.unique(np.round(mean, 6))) == 2  # rows with the same features cannot be told apart


def test_an_impossible_batch_is_refused() -> None:
    with pytest.raises(BadInputError, match="batch"):
        make_policy("sequential-elimination", batch=0)
