"""The low-rank ensemble: it completes what is low-rank, and its spread is as large as its error."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import make_estimator
from estimators._low_rank_core import LowRankEnsemble, dropped_entries


def planted(seed: int, m: int = 60, n: int = 400, share: float = 0.3, noise: float = 0.1):
    """A rank-1 matrix (m, n), and what is observed of it with noise."""
    rng = np.random.default_rng(seed)
    truth = np.outer(rng.uniform(0.4, 1.0, m), rng.uniform(0.3, 1.0, n))
    observed = np.where(rng.random((m, n)) < share, truth + noise * rng.normal(size=(m, n)), np.nan)
    return truth, observed


@pytest.mark.parametrize("drop", [0.05, 0.5])
def test_recovers_a_planted_matrix_and_the_spread_is_the_true_error(drop: float) -> None:
    ratios, covered, row_ratios = [], [], []
    for seed in range(4):
        truth, observed = planted(seed)
        fit = LowRankEnsemble(drop=drop, seed=seed).fit(observed)
        unseen = np.isnan(observed)
        error, std = (fit.mean - truth)[unseen], fit.scale * fit.spread[unseen]
        assert np.sqrt((error**2).mean()) < 0.04  # scores themselves are off by 0.1
        ratios.append(np.sqrt((error**2).mean() / (std**2).mean()))
        covered.append((np.abs(error) < 1.96 * std).mean())
        rows = fit.row_scores(np.full(truth.shape, 1.0 / truth.shape[1]))
        row_error = rows.mean(axis=1) - truth.mean(axis=1)
        row_ratios.append(row_error.std() / (fit.scale * rows.std(axis=1)).mean())
    assert 0.85 < np.mean(ratios) < 1.2
    assert 0.9 < np.mean(covered) < 0.97
    assert 0.75 < np.mean(row_ratios) < 1.25
    assert abs(np.sqrt(fit.noise) - 0.1) < 0.01


def test_members_are_paired_with_their_own_factors() -> None:
    _, observed = planted(0, share=0.1)
    fit = LowRankEnsemble(members=8).fit(observed)
    member = np.stack([fit.rows[:, c] @ fit.columns[:, c].T for c in range(8)])
    np.testing.assert_allclose(fit.mean, member.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(fit.spread, member.std(axis=0), atol=1e-6)
    weights = np.random.default_rng(0).random(observed.shape)
    np.testing.assert_allclose(fit.row_scores(weights), (member * weights).sum(axis=2).T)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("share", [0.2, 0.7])  # compressed and dense sums
def test_batched_members_equal_one_regression_after_another(rank: int, share: float) -> None:
    _, observed = planted(1, m=12, n=20, share=share)
    model = LowRankEnsemble(rank=rank, members=3, drop=0.2, member_sweeps=1)
    fit = model.fit(observed)
    rows, columns = np.nonzero(~np.isnan(observed))
    dropped = dropped_entries(rows, columns, np.arange(3), model.drop, model.seed)
    for c in range(3):
        masked = observed.copy()
        masked[rows[dropped[:, c]], columns[dropped[:, c]]] = np.nan
        v = regressions(masked.T, fit.full.rows, model.ridge)
        np.testing.assert_allclose(fit.columns[:, c], v, atol=1e-8)
        np.testing.assert_allclose(fit.rows[:, c], regressions(masked, v, model.ridge), atol=1e-8)


def regressions(targets: np.ndarray, factors: np.ndarray, ridge: float) -> np.ndarray:
    """Row by row: ridge regression of a row's scores on the factors, towards the pooled regression."""
    eye = ridge * np.eye(factors.shape[1])
    seen = ~np.isnan(targets)
    gram = [factors[mask].T @ factors[mask] for mask in seen]
    dot = [factors[mask].T @ row[mask] for mask, row in zip(seen, targets, strict=True)]
    centre = np.linalg.solve(sum(gram) + eye, sum(dot))
    return np.array([np.linalg.solve(g + eye, d + ridge * centre) for g, d in zip(gram, dot, strict=True)])


def test_a_higher_rank_recovers_a_planted_matrix_of_that_rank() -> None:
    rng = np.random.default_rng(5)
    truth = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 150))
    observed = np.where(rng.random(truth.shape) < 0.4, truth, np.nan)
    errors = [
        np.abs(LowRankEnsemble(rank=r, members=4, ridge=0.01, sweeps=200).fit(observed).mean - truth).mean()
        for r in (1, 2)
    ]
    assert errors[1] < 0.05 < errors[0]


def test_an_entry_keeps_its_members_when_others_come() -> None:
    rows, columns = np.nonzero(np.ones((6, 7)))
    all_members = dropped_entries(rows, columns, np.arange(64), 0.3, 9)
    assert abs(all_members.mean() - 0.3) < 0.03
    some = rows < 3
    np.testing.assert_array_equal(
        dropped_entries(rows[some], columns[some], np.arange(10, 30), 0.3, 9), all_members[some, 10:30]
    )
    assert (dropped_entries(rows, columns, np.arange(64), 0.3, 10) != all_members).any()


def test_a_warm_start_takes_new_rows_and_ends_where_a_cold_one_does() -> None:
    _, observed = planted(2)
    model = LowRankEnsemble(members=4, tolerance=1e-7, sweeps=500)
    before = model.fit(observed[:50, :390])
    warm, cold = model.fit(observed, start=before.full), model.fit(observed)
    product = [fit.full.rows @ fit.full.columns.T for fit in (warm, cold)]
    np.testing.assert_allclose(*product, atol=5e-3)  # a fifth of the error; the scale of U against V is free
    lazy = LowRankEnsemble(members=4, sweeps=1)
    unlike = [np.abs(lazy.fit(observed, start=s).mean - cold.mean).mean() for s in (before.full, None)]
    assert unlike[0] < unlike[1]


def test_the_same_matrix_gives_the_same_fit_whatever_was_fitted_before() -> None:
    model = LowRankEnsemble(members=4)
    _, observed = planted(3)
    first = model.fit(observed).mean
    model.fit(planted(4)[1])
    np.testing.assert_array_equal(model.fit(observed).mean, first)


@pytest.mark.parametrize("bad", [{"rank": 0}, {"drop": 1.0}, {"ridge": 0.0}, {"members": -1}])
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match="low-rank needs"):
        LowRankEnsemble(**bad)


def test_a_matrix_without_entries_is_refused() -> None:
    with pytest.raises(BadInputError, match="no entry is observed"):
        LowRankEnsemble().fit(np.full((3, 4), np.nan))


def test_factors_of_the_history_predict_a_new_method() -> None:
    truth, _ = planted(6, m=80, n=120)
    rng = np.random.default_rng(0)
    answers = (rng.random(truth.shape) < truth).astype(float)
    estimator = make_estimator("low-rank", rank=1).fit(ScoreMatrix.build(answers[:70]))
    observed = np.where(rng.random((10, 120)) < 0.3, answers[70:], np.nan)
    predicted = estimator.predict(observed).mean
    unseen = np.isnan(observed)
    row_mean = np.nanmean(observed, axis=1, keepdims=True)
    error = np.abs(predicted - truth[70:])[unseen].mean()
    assert error < 0.7 * np.abs(row_mean - truth[70:])[unseen].mean()
    score = estimator.benchmark_score(observed)
    assert (np.abs(score.mean - answers[70:].mean(axis=1)) < 3.5 * score.std).all()
    assert isinstance(estimator.prompt_features(), np.ndarray)
