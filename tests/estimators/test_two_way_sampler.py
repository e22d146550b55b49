"""Draws of rows' and columns' effects with unknown variances."""

from __future__ import annotations

import numpy as np

from estimators._two_way_logistic import Cells
from estimators._two_way_sampler import sample_effects

ROWS, COLUMNS = 40, 50


def study(rng: np.random.Generator, spread: float, share: float) -> tuple[Cells, np.ndarray, np.ndarray]:
    """Cells of a planted study, its rows' theta and all chances."""
    theta, easiness = rng.normal(0.5, spread, ROWS), rng.normal(0.0, 1.2, COLUMNS)
    chance = 1.0 / (1.0 + np.exp(-(theta[:, None] + easiness)))
    rows, columns = np.nonzero(rng.random(chance.shape) < share)
    values = (rng.random(len(rows)) < chance[rows, columns]).astype(float)
    return Cells(rows, columns, values, np.zeros((ROWS, 0)), np.zeros((COLUMNS, 0))), theta, chance


def spreads(cells: Cells, n: int = 150) -> np.ndarray:
    """(n,) standard deviation of the rows' mean chances in each draw."""
    drawn = sample_effects(cells, n, np.random.default_rng(0))
    return np.array(
        [(1.0 / (1.0 + np.exp(-(d.theta[:, None] + d.easiness)))).mean(axis=1).std() for d in drawn]
    )


def test_how_far_rows_lie_apart_is_covered_whether_they_are_models_or_templates() -> None:
    inside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cells, _, chance = study(rng, spread=(0.5, 1.5)[seed % 2], share=0.15)
        low, high = np.quantile(spreads(cells), (0.05, 0.95))
        inside.append(low <= chance.mean(axis=1).std() <= high)
    assert np.mean(inside) >= 0.75  # 90 % intervals of 20 studies


def test_two_heaps_of_rows_are_found() -> None:
    rng = np.random.default_rng(0)
    heap = np.repeat([0, 1], ROWS // 2)
    chance = np.array([0.1, 0.8])[heap]
    rows, columns = np.nonzero(rng.random((ROWS, COLUMNS)) < 0.3)
    values = (rng.random(len(rows)) < chance[rows]).astype(float)
    cells = Cells(rows, columns, values, np.zeros((ROWS, 0)), np.zeros((COLUMNS, 0)))
    theta = np.mean([d.theta for d in sample_effects(cells, 100, np.random.default_rng(1))], axis=0)
    assert theta[heap == 1].min() > theta[heap == 0].max()


def test_covariates_of_rows_and_columns_carry_over_to_what_has_no_cell() -> None:
    rng = np.random.default_rng(2)
    x, z = rng.normal(size=(ROWS, 1)), rng.normal(size=(COLUMNS, 1))
    chance = 1.0 / (1.0 + np.exp(-1.5 * (x + z.T)))
    seen = np.zeros(chance.shape, dtype=bool)
    seen[:30, :40] = rng.random((30, 40)) < 0.3
    rows, columns = np.nonzero(seen)
    values = (rng.random(len(rows)) < chance[rows, columns]).astype(float)
    drawn = list(sample_effects(Cells(rows, columns, values, x, z), 150, np.random.default_rng(3)))
    theta = np.mean([d.theta for d in drawn], axis=0)
    easiness = np.mean([d.easiness for d in drawn], axis=0)
    assert np.corrcoef(theta[30:], x[30:, 0])[0, 1] > 0.9
    assert np.corrcoef(easiness[40:], z[40:, 0])[0, 1] > 0.9


def test_nothing_observed_leaves_the_prior() -> None:
    none = np.zeros(0, dtype=np.intp)
    cells = Cells(none, none, np.zeros(0), np.zeros((ROWS, 0)), np.zeros((COLUMNS, 0)))
    drawn = list(sample_effects(cells, 20, np.random.default_rng(0)))
    assert all(np.isfinite(d.theta).all() and np.isfinite(d.easiness).all() for d in drawn)


def test_same_seed_same_draws() -> None:
    cells, _, _ = study(np.random.default_rng(0), 1.0, 0.1)
    first, again = (list(sample_effects(cells, 3, np.random.default_rng(5))) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.theta, other.theta)
