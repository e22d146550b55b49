import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import BadInputError
from estimators import ScoreEstimate, make_estimator
from estimators.intervals import ConformalIntervals, HeldOut, calibrate, conformal_quantile, cross_fit
from tests.estimators.matrices import planted


def held_out(rng: np.random.Generator, n: int, *, count: int = 50, scale: float = 2.0) -> HeldOut:
    """Rows whose errors are heavy-tailed and `scale` times what the estimator believes."""
    truth = rng.uniform(0.2, 0.8, n)
    std = rng.uniform(0.01, 0.03, n)
    estimate = np.clip(truth + scale * std * rng.laplace(size=n), 0.0, 1.0)
    return HeldOut(np.full(n, count), truth, estimate, std)


def coverage(intervals: ConformalIntervals, rows: HeldOut, level: float) -> float:
    low, high = intervals.interval(ScoreEstimate(rows.estimate, rows.std), rows.count, level)
    return float(((low <= rows.truth) & (rows.truth <= high)).mean())


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(20, 150),
    level=st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    scale=st.floats(0.2, 5.0),
)
def test_covers_exchangeable_rows_on_average(seed, n, level, scale):
    """Averaged over calibration sets, coverage is at least the level (and at most a little more)."""
    rng = np.random.default_rng(seed)
    reached = [
        coverage(calibrate(held_out(rng, n, scale=scale), edges=()), held_out(rng, 200, scale=scale), level)
        for _ in range(60)
    ]
    assert level - 0.03 <= np.mean(reached) <= level + 1.0 / (n + 1) + 0.03


def test_quantile_has_the_finite_sample_correction():
    ratio = np.arange(1.0, 20.0)  # 19 values: ceil(20 * .95) = 19
    assert conformal_quantile(ratio, 0.95) == 19.0
    assert conformal_quantile(ratio[:-1], 0.95) == math.inf
    assert conformal_quantile(ratio, 0.5) == 10.0


def test_too_few_rows_give_the_whole_range():
    intervals = calibrate(held_out(np.random.default_rng(0), 5))
    low, high = intervals.interval(ScoreEstimate(np.array([0.5]), np.array([0.01])), np.array([50]), 0.95)
    assert (low[0], high[0]) == (0.0, 1.0)


def test_nothing_left_to_predict_has_no_width():
    intervals = calibrate(held_out(np.random.default_rng(0), 100))
    low, high = intervals.interval(ScoreEstimate(np.array([0.5]), np.array([0.0])), np.array([900]))
    assert (low[0], high[0]) == (0.5, 0.5)


def test_interpolates_between_counts_and_stays_level_outside():
    rng = np.random.default_rng(1)
    few, many = held_out(rng, 400, count=25, scale=1.0), held_out(rng, 400, count=100, scale=3.0)
    both = HeldOut(
        *(np.concatenate(pair) for pair in zip(vars(few).values(), vars(many).values(), strict=True))
    )
    intervals = calibrate(both, edges=())
    factors = intervals.factor(np.full(5, 0.5), np.array([0, 25, 50, 100, 1000]), 0.9)
    assert factors[0] == factors[1] < factors[2] < factors[3] == factors[4]
    assert factors[2] == pytest.approx((factors[1] + factors[3]) / 2)


def test_widens_only_the_range_where_coverage_falls_short():
    rng = np.random.default_rng(2)
    good, bad = held_out(rng, 900, scale=1.0), held_out(rng, 300, scale=4.0)
    low = np.where(np.arange(300) >= 0, 0.2, 0.0)
    shifted = HeldOut(bad.count, low, low + (bad.estimate - bad.truth) * 0.2, bad.std * 0.2)
    high = HeldOut(good.count, good.truth * 0.2 + 0.7, good.estimate * 0.2 + 0.7, good.std * 0.2)
    both = HeldOut(
        *(np.concatenate(pair) for pair in zip(vars(shifted).values(), vars(high).values(), strict=True))
    )
    plain, ranged = calibrate(both, edges=()), calibrate(both, edges=(0.5,))
    assert coverage(plain, shifted, 0.9) < 0.85
    assert coverage(ranged, shifted, 0.9) >= 0.9
    everyone = coverage(ranged, both, 0.9)
    assert 0.9 <= everyone <= 0.91
    assert ranged.factor(np.array([0.8]), np.array([50]), 0.9) <= plain.factor(
        np.array([0.8]), np.array([50]), 0.9
    )


def test_survives_json():
    intervals = calibrate(held_out(np.random.default_rng(3), 30))
    again = ConformalIntervals.from_json(json.loads(json.dumps(intervals.to_json(), allow_nan=False)))
    for field in ("levels", "counts", "edges", "factors"):
        np.testing.assert_array_equal(getattr(intervals, field), getattr(again, field))
    assert again.rows == 30


def test_refuses_what_it_cannot_answer():
    intervals = calibrate(held_out(np.random.default_rng(3), 30))
    with pytest.raises(BadInputError, match=r"0\.97"):
        intervals.factor(np.array([0.5]), np.array([10]), 0.97)
    with pytest.raises(BadInputError, match="at least 1"):
        calibrate(HeldOut(*(np.empty(0) for _ in range(4))))


@pytest.mark.parametrize("design", ["random", "variance-reduction"])
def test_cross_fitting_estimates_every_row_once_per_count(design):
    history = planted("binary", missing=0.05)
    rows = cross_fit(
        lambda: make_estimator("mirt", dimensions=2, sweeps=10), history, [5, 10, 90], design=design
    )
    assert len(rows.count) == 3 * history.n_methods
    assert set(rows.count.tolist()) == {5, 10, 30}
    assert (rows.std > 0).mean() > 0.6
    error = np.abs(rows.truth - rows.estimate)
    assert error[rows.count == 10].mean() < error[rows.count == 5].mean()
