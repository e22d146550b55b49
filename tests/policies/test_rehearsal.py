"""Rehearsing distribution studies on history rows."""

from __future__ import annotations

import numpy as np
import pytest

from assay.matrix import ScoreMatrix
from estimators import make_estimator
from policies import make_policy
from policies.rehearsal import learn_quantile_factors


def history(rows: int, prompts: int = 20) -> ScoreMatrix:
    rng = np.random.default_rng(0)
    chance = 1.0 / (1.0 + np.exp(-rng.normal(0, 1.5, (rows, 1)) - rng.normal(0, 1.0, prompts)))
    return ScoreMatrix.build((rng.random(chance.shape) < chance).astype(float))


def learn(rows: int, sizes: tuple[int, ...] = (6,), estimator: str = "x-pirt", policy: str = "balanced"):
    known = history(rows)
    return learn_quantile_factors(
        known,
        make_estimator(estimator, **({"dimensions": 1} if estimator == "mirt-group" else {})).fit(known),
        lambda seed: make_policy(policy, seed=seed),
        rows=sizes,
        cells=[2.0, 5.0],
        batch=20,
        levels=[0.8],
        groups=5,
    )


@pytest.mark.parametrize(
    ("estimator", "policy"), [("x-pirt", "balanced"), ("mirt-group", "quantile-variance")]
)
def test_a_factor_per_budget_and_quantile(estimator: str, policy: str) -> None:
    found = learn(60, estimator=estimator, policy=policy)
    assert found is not None
    assert found.stretch.shape == (1, 1, 2, 5)
    assert found.groups == 5
    assert (found.stretch >= 0).all()
    again = learn(60, estimator=estimator, policy=policy)
    assert again is not None
    np.testing.assert_array_equal(found.stretch, again.stretch)


def test_only_studies_that_the_history_can_play() -> None:
    few = learn(20, (6, 30))
    assert few is not None
    assert few.rows.tolist() == [6]
    assert learn(17) is None
