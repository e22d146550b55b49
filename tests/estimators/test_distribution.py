"""The distribution of many rows' scores: X-pIRT, expected order statistics, quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import ESTIMATORS, SupportsRowFeatures, make_estimator
from estimators._two_way_logistic import Cells, fit_two_way
from estimators._x_pirt import binarise
from estimators.distribution import QUANTILES, quantiles_of, score_distribution, wasserstein

ROWS, COLUMNS = 40, 60


def planted(seed: int = 0, rows: int = ROWS, columns: int = COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    """Binary scores of a Rasch model and the rows' abilities."""
    rng = np.random.default_rng(seed)
    ability, easiness = rng.normal(0.3, 1.2, rows), rng.normal(0.0, 1.5, columns)
    chance = 1.0 / (1.0 + np.exp(-(ability[:, None] + easiness)))
    return (rng.random((rows, columns)) < chance).astype(float), ability


def few(scores: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    seen = np.random.default_rng(seed).random(scores.shape) < share
    return np.where(seen, scores, np.nan)


def x_pirt(columns: int = COLUMNS, name: str = "x-pirt"):
    history = (
        np.resize([0.0, 1.0], (2, columns)) if name == "x-pirt-history" else np.full((1, columns), np.nan)
    )
    return make_estimator(name).fit(ScoreMatrix.build(history))


def test_quantiles_follow_the_papers_definition() -> None:
    scores = [0.4, 0.1, 0.3, 0.2]  # Q(p) = inf{x : F(x) >= p}
    np.testing.assert_array_equal(
        quantiles_of(scores, (0.01, 0.25, 0.26, 0.5, 1.0)), [0.1, 0.1, 0.2, 0.2, 0.4]
    )
    with pytest.raises(BadInputError, match="quantiles"):
        quantiles_of(scores, (0.0,))


def test_wasserstein_is_the_mean_gap_of_sorted_values() -> None:
    assert wasserstein([0.3, 0.1], [0.2, 0.2]) == pytest.approx(0.1)


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_the_distribution_is_closer_than_that_of_plain_means(share: float) -> None:
    ours, plain = [], []
    for seed in range(4):
        scores, _ = planted(seed)
        observed = few(scores, share, seed)
        found = score_distribution(x_pirt(), observed, np.random.default_rng(0))
        ours.append(wasserstein(found.order, scores.mean(axis=1)))
        with np.errstate(all="ignore"):
            means = np.array(
                [row[~np.isnan(row)].mean() if (~np.isnan(row)).any() else 0.5 for row in observed]
            )
        plain.append(wasserstein(means, scores.mean(axis=1)))
    assert np.mean(ours) < 0.8 * np.mean(plain)


def test_sampling_estimates_are_not_spread_twice() -> None:
    scores, _ = planted()
    observed = few(scores, 0.3)
    plain = make_estimator("aggregate").fit(ScoreMatrix.build(scores))
    found = score_distribution(plain, observed, np.random.default_rng(0))
    np.testing.assert_allclose(found.order, np.sort(plain.benchmark_score(observed).mean))


def test_everything_known_leaves_no_doubt() -> None:
    scores, _ = planted()
    found = score_distribution(x_pirt(), scores, np.random.default_rng(0))
    np.testing.assert_allclose(found.order, np.sort(scores.mean(axis=1)), atol=1e-9)
    low, high = found.intervals(QUANTILES, 0.9)
    np.testing.assert_allclose(high - low, 0.0, atol=1e-9)


def test_intervals_hold_the_estimate_and_stretch_by_their_factor() -> None:
    scores, _ = planted()
    found = score_distribution(x_pirt(), few(scores, 0.1), np.random.default_rng(0))
    low, high = found.intervals(QUANTILES, 0.9)
    wide_low, wide_high = found.intervals(QUANTILES, 0.9, 1.5)
    middle = found.quantiles(QUANTILES)
    assert ((low <= middle) & (middle <= high)).all()
    assert ((wide_low <= low) & (high <= wide_high)).all()
    np.testing.assert_allclose(middle - wide_low, np.minimum(1.5 * (middle - low), middle), atol=1e-12)


def test_row_covariates_help_where_they_say_something() -> None:
    ability = planted()[1]
    rng = np.random.default_rng(5)
    features = np.column_stack([ability, rng.normal(size=(ROWS, 3))])
    errors: dict[str, list[float]] = {"with": [], "without": []}
    for seed in range(4):
        scores, _ = planted()
        observed, truth = few(scores, 0.03, seed), scores.mean(axis=1)
        plain = x_pirt(name="x-pirt-discrete")
        assert isinstance(plain, SupportsRowFeatures)
        for key, estimator in (("with", plain.with_rows(features)), ("without", plain)):
            errors[key].append(float(np.abs(estimator.benchmark_score(observed).mean - truth).mean()))
    assert np.mean(errors["with"]) < 0.95 * np.mean(errors["without"])
    with pytest.raises(BadInputError, match="covariates were given"):
        plain.with_rows(features[:5]).predict(observed)


def test_example_covariates_are_used() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(80, 2))
    chance = 1.0 / (1.0 + np.exp(-(rng.normal(size=(60, 1)) + 2.0 * z[:, 0])))
    rows, columns = np.nonzero(rng.random(chance.shape) < 0.1)
    values = (rng.random(len(rows)) < chance[rows, columns]).astype(float)
    model = fit_two_way(Cells(rows, columns, values, np.zeros((60, 0)), z))
    assert np.corrcoef(model.easiness, z[:, 0])[0, 1] > 0.9


def test_listing_pairs_or_not_gives_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, _ = planted()
    rows, columns = np.nonzero(~np.isnan(few(scores, 0.1)))
    cells = Cells(rows, columns, scores[rows, columns], np.ones((ROWS, 1)), np.ones((COLUMNS, 1)))
    listed = fit_two_way(cells)
    monkeypatch.setattr("estimators._two_way_logistic.MOST_PAIRS", 0.0)
    dense = fit_two_way(cells)
    np.testing.assert_allclose(listed.theta, dense.theta, atol=1e-8)
    np.testing.assert_allclose(listed.covariance, dense.covariance, atol=1e-8)


def test_binarising_keeps_the_sum() -> None:
    values = np.random.default_rng(0).random(101)
    assert abs(binarise(values).sum() - values.sum()) <= 0.5
    np.testing.assert_array_equal(binarise(np.array([0.0, 1.0, 1.0])), [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(binarise(np.zeros(3)), np.zeros(3))


@pytest.mark.parametrize("name", [name for name in ESTIMATORS.names() if name.startswith("x-pirt")])
def test_same_seed_same_distribution(name: str) -> None:
    observed = few(planted()[0], 0.1)
    first = score_distribution(x_pirt(name=name), observed, np.random.default_rng(3))
    again = score_distribution(x_pirt(name=name), observed, np.random.default_rng(3))
    np.testing.assert_array_equal(first.order, again.order)
