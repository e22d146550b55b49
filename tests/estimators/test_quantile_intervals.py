"""Factors of the quantiles' intervals: what they are learned from, and where they are read off."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from estimators.distribution import ScoreDistribution, quantiles_of
from estimators.quantile_intervals import QuantileFactors, calibrate_quantiles, misses

AT, LEVEL, ROWS = (0.25, 0.5), 0.8, 40


def rehearsal(rng: np.random.Generator) -> tuple[ScoreDistribution, np.ndarray]:
    """Estimates that are too sure of themselves, and too high."""
    truth = np.sort(rng.random(ROWS))
    drawn = np.sort(
        truth + 0.05 + rng.normal(0, 0.05) + rng.normal(0, 0.01, (100, 1)) + np.zeros(ROWS), axis=1
    )
    found = ScoreDistribution(drawn.mean(axis=0), drawn.std(axis=0), drawn.mean(axis=0), drawn)
    return found, quantiles_of(truth, AT)


def learned(n: int = 200, level: float = LEVEL) -> QuantileFactors:
    rng = np.random.default_rng(0)
    ratios = np.stack([misses(*rehearsal(rng), AT, level) for _ in range(n)])
    return calibrate_quantiles(ratios[:, None, None, None], levels=[level], rows=[ROWS], cells=[4.0], at=AT)


def test_stretched_intervals_cover_as_often_as_they_say() -> None:
    factors = learned().factors(AT, LEVEL, ROWS, 4.0)
    rng, own, stretched = np.random.default_rng(1), [], []
    for _ in range(400):
        found, truth = rehearsal(rng)
        for kept, factor in ((own, 1.0), (stretched, factors)):
            low, high = found.intervals(AT, LEVEL, factor)
            kept.append((low <= truth) & (truth <= high))
    assert np.mean(own) < 0.4
    assert 0.75 < np.mean(stretched) < 0.86


def test_read_off_between_what_was_rehearsed_and_constant_beyond() -> None:
    stretch = np.array(
        [[[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]]
    )  # levels, rows, cells, quantiles
    known = QuantileFactors(
        np.array([0.9]), np.array([10.0, 1000.0]), np.array([1.0, 100.0]), np.array(AT), stretch, 30
    )
    assert known.factors([0.25], 0.9, 100, 1.0)[0] == pytest.approx(3.0)
    assert known.factors([0.25], 0.9, 10, 10.0)[0] == pytest.approx(2.0)
    np.testing.assert_allclose(known.factors([0.01, 0.375, 0.99], 0.9, 2, 1e9), [3.0, 3.5, 4.0])
    again = QuantileFactors.from_json(known.to_json())
    np.testing.assert_array_equal(again.stretch, known.stretch)
    with pytest.raises(BadInputError, match="are not calibrated"):
        known.factors([0.5], 0.99, 10, 1.0)


def test_one_rehearsed_number_of_rows_and_cells_serves_all() -> None:
    factors = learned()
    np.testing.assert_array_equal(factors.factors(AT, LEVEL, 3, 100.0), factors.factors(AT, LEVEL, 900, 0.5))
