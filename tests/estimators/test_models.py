"""The models behind the estimators, against slower or independent computations."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import load_estimator, make_estimator
from estimators._designs import random_design, variance_reduction_design
from estimators._factor_analysis import expected_scores, fit_factors
from estimators._folds import keep_at_random, known_scores, row_folds
from estimators._gp_irt import _anchored
from estimators._impute import imputed
from estimators._kernel_correction import fit_correction
from estimators._logistic_factors import LogisticModel, bound_weight, fit_logistic
from estimators._logistic_posterior import latent_posterior
from estimators._ridge_solver import RidgeSolver
from tests.estimators.matrices import partly, planted


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def logistic_data(rng, m=600, n=60, d=1):
    slopes = rng.uniform(0.5, 2.0, (n, d)) if d == 1 else 1.2 * rng.standard_normal((n, d))
    intercepts = rng.standard_normal(n)
    latents = rng.standard_normal((m, d))
    values = (rng.random((m, n)) < sigmoid(latents @ slopes.T + intercepts)).astype(np.float64)
    return slopes, intercepts, values


def plain(values, d, **options):
    n = values.shape[1]
    return fit_logistic(values, d, np.zeros(n, dtype=np.intp), np.zeros(n, dtype=bool), **options)[0]


class TestLogisticFactors:
    def test_recovers_planted_parameters(self):
        slopes, intercepts, values = logistic_data(np.random.default_rng(0), m=3000)
        model = plain(values, 1)
        assert np.corrcoef(np.abs(model.slopes[:, 0]), slopes[:, 0])[0, 1] > 0.95
        assert np.abs(model.intercepts - intercepts).mean() < 0.1

    def test_missing_entries_drop_out(self):
        rng = np.random.default_rng(1)
        slopes, _, values = logistic_data(rng, m=3000)
        values[rng.random(values.shape) < 0.3] = np.nan
        assert np.corrcoef(np.abs(plain(values, 1).slopes[:, 0]), slopes[:, 0])[0, 1] > 0.93

    def test_blocks_of_rows_change_nothing(self, monkeypatch):
        _, _, values = logistic_data(np.random.default_rng(2), m=50, n=20)
        whole = plain(values, 2, sweeps=5)
        monkeypatch.setattr("estimators._logistic_factors.BLOCK_CELLS", 140)
        np.testing.assert_allclose(plain(values, 2, sweeps=5).slopes, whole.slopes, atol=2e-3)

    def test_warm_start_reaches_the_loss_of_a_cold_fit_in_fewer_sweeps(self):
        rng = np.random.default_rng(3)
        _, _, values = logistic_data(rng, m=400, n=80, d=2)
        test = values[:80]
        earlier = plain(values[80:360], 2)
        cold, warm = plain(values[80:], 2, sweeps=40), plain(values[80:], 2, sweeps=8, start=earlier)
        few = keep_at_random(test, 20, rng)

        def loss(model: LogisticModel) -> float:
            latents = latent_posterior(model, few).mean
            p = np.clip(sigmoid(latents @ model.slopes.T + model.intercepts), 1e-6, 1 - 1e-6)
            return float(-np.log(np.where(test == 1, p, 1 - p))[np.isnan(few)].mean())

        assert loss(warm) < loss(cold) + 0.003

    def test_real_scores_get_their_own_dispersion(self):
        history = planted("real", rows=200, missing=0.0)
        estimator = make_estimator("mirt", dimensions=2).fit(history)
        assert (estimator.model_.dispersion < 0.3).all()
        assert (make_estimator("mirt", dimensions=2).fit(planted("binary")).model_.dispersion == 1.0).all()

    def test_bound_weight_at_zero(self):
        np.testing.assert_allclose(bound_weight(np.array([0.0, 1.0])), [0.25, np.tanh(0.5) / 2.0], rtol=1e-5)


class TestLogisticPosterior:
    def test_matches_quadrature(self):
        rng = np.random.default_rng(4)
        slopes, intercepts, values = logistic_data(rng, m=6, n=40)
        model = LogisticModel(slopes, intercepts, np.ones(40))
        observed = keep_at_random(values, 25, rng)
        posterior = latent_posterior(model, observed)
        grid = np.linspace(-6.0, 6.0, 4001)
        for b, row in enumerate(observed):
            seen = ~np.isnan(row)
            logit = grid[:, None] * slopes[seen, 0] + intercepts[seen]
            density = np.where(row[seen] == 1, -np.logaddexp(0, -logit), -np.logaddexp(0, logit)).sum(1)
            weight = np.exp(density - 0.5 * grid**2 - (density - 0.5 * grid**2).max())
            weight /= weight.sum()
            mean = weight @ grid
            spread = np.sqrt(weight @ (grid - mean) ** 2)
            assert posterior.mean[b, 0] == pytest.approx(mean, abs=0.2 * spread)
            assert np.sqrt(posterior.covariance[b, 0, 0]) == pytest.approx(spread, rel=0.08)

    def test_prior_where_nothing_is_observed(self):
        model = LogisticModel(np.ones((5, 2)), np.zeros(5), np.ones(5))
        posterior = latent_posterior(model, np.full((3, 5), np.nan))
        np.testing.assert_array_equal(posterior.mean, 0.0)
        np.testing.assert_allclose(posterior.covariance, np.broadcast_to(np.eye(2), (3, 2, 2)))


class TestFactorAnalysis:
    def test_recovers_the_covariance(self):
        rng = np.random.default_rng(5)
        loadings = 0.15 * rng.standard_normal((25, 2))
        values = 0.5 + rng.standard_normal((4000, 2)) @ loadings.T + 0.1 * rng.standard_normal((4000, 25))
        values[rng.random(values.shape) < 0.2] = np.nan
        model = fit_factors(values, 2, np.zeros(25, dtype=np.intp))
        np.testing.assert_allclose(model.loadings @ model.loadings.T, loadings @ loadings.T, atol=0.006)
        np.testing.assert_allclose(model.noise, 0.01, atol=0.002)

    def test_complete_and_missing_paths_agree(self):
        values = planted("real", rows=60, missing=0.0).values.astype(np.float64)
        holed = values.copy()
        holed[0, 0] = np.nan
        groups = np.zeros(values.shape[1], dtype=np.intp)
        whole, other = fit_factors(values, 2, groups), fit_factors(holed, 2, groups)
        few = partly(values[:5], 6)
        np.testing.assert_allclose(expected_scores(whole, few), expected_scores(other, few), atol=0.02)

    @pytest.mark.parametrize("rows", [60, 250])
    def test_imputation_keeps_what_is_there_and_beats_the_column_means(self, rows):
        truth = planted("real", rows=rows, missing=0.0).values.astype(np.float64)
        holed = truth.copy()
        gaps = np.random.default_rng(6).random(truth.shape) < 0.2
        holed[gaps] = np.nan
        filled = imputed(holed, np.zeros(truth.shape[1], dtype=np.intp))
        np.testing.assert_array_equal(filled[~gaps], truth[~gaps])
        means = np.broadcast_to(np.nanmean(holed, axis=0), truth.shape)
        assert np.abs(filled - truth)[gaps].mean() < 0.6 * np.abs(means - truth)[gaps].mean()

    @pytest.mark.parametrize("name", ["linear-gaussian", "mirt"])
    def test_refuses_no_dimensions(self, name):
        setting = {"linear-gaussian": "rank", "mirt": "dimensions"}[name]
        with pytest.raises(BadInputError, match="1 or more"):
            make_estimator(name, **{setting: 0}).fit(planted())


class TestRidge:
    @pytest.mark.parametrize("count", [4, 25])  # fewer and more observed columns than rows
    def test_weights_match_scikit_learn(self, count):
        rng = np.random.default_rng(7)
        raw = rng.random((12, 30))
        centred = raw - raw.mean(axis=0)
        solver = RidgeSolver(centred)
        columns, row = np.arange(count), rng.standard_normal((1, count))
        direct = Ridge(alpha=0.7, fit_intercept=False).fit(centred[:, :count], centred).predict(row)
        np.testing.assert_allclose((centred.T @ solver.weights(columns, row, 0.7)).T, direct, atol=1e-8)

    @pytest.mark.parametrize("count", [4, 25])
    def test_held_out_errors_match_refitting(self, count):
        rng = np.random.default_rng(8)
        raw = rng.random((12, 30))
        target = rng.random((12, 2))
        solver = RidgeSolver(raw - raw.mean(axis=0))
        columns = np.arange(count)
        centred = target - target.mean(axis=0)
        left = []
        for i in range(12):
            kept = np.arange(12) != i
            model = Ridge(alpha=0.7).fit(raw[kept][:, :count], target[kept])
            left.append((target[i] - model.predict(raw[i : i + 1, :count])[0]) ** 2)
        expected = np.mean(left, axis=0)
        np.testing.assert_allclose(solver.residual_variance(columns, centred, 0.7), expected, rtol=1e-6)
        np.testing.assert_allclose(
            solver.held_out_errors(columns, centred, np.array([0.7]))[0], expected, rtol=1e-6
        )


class TestDesigns:
    def test_random_design_extends_itself(self):
        truth = planted("binary").values[:6].astype(np.float64)
        rows = list(random_design(make_estimator("aggregate"), truth, [3, 8], np.random.default_rng(0)))
        assert [(~np.isnan(seen)).sum(axis=1).tolist() for seen in rows] == [[3] * 6, [8] * 6]
        first = ~np.isnan(rows[0])
        np.testing.assert_array_equal(rows[1][first], rows[0][first])

    def test_variance_reduction_picks_the_best_first_prompt_by_brute_force(self):
        history = planted("real", missing=0.0)
        estimator = make_estimator("linear-gaussian", rank=2, among=0).fit(history)
        truth = history.values[:1].astype(np.float64)
        (seen,) = variance_reduction_design(estimator, truth, [1], np.random.default_rng(0))
        stds = []
        for j in range(history.n_prompts):
            asked = np.full((1, history.n_prompts), np.nan)
            asked[0, j] = truth[0, j]
            stds.append(estimator.benchmark_score(asked).std[0])
        assert np.flatnonzero(~np.isnan(seen[0])).tolist() == [int(np.argmin(stds))]

    def test_with_few_rows_every_row_chooses_among_candidates_of_its_own(self):
        history = planted("real", missing=0.0)
        estimator = make_estimator("auto", candidates=["linear-gaussian"]).fit(history)
        assert estimator.candidates_per_choice() == history.n_methods
        few = make_estimator("corrected:linear-gaussian", base_params={"among": 3}).fit(history)
        assert few.candidates_per_choice() == 3
        truth = history.values[:8].astype(np.float64)
        (seen,) = variance_reduction_design(few, truth, [4], np.random.default_rng(0))
        chosen = {tuple(np.flatnonzero(~np.isnan(row))) for row in seen}
        assert len(chosen) > 4
        assert all(len(columns) == 4 for columns in chosen)

    def test_the_number_of_candidates_is_kept_and_checked(self, tmp_path):
        history = planted("binary")
        make_estimator("linear-gaussian", rank=2).fit(history).save(tmp_path)
        assert load_estimator(tmp_path).candidates_per_choice() == history.n_methods
        with pytest.raises(BadInputError, match="candidates is 0 or more"):
            make_estimator("linear-gaussian", among=-1).fit(history)

    def test_variance_reduction_beats_random_on_the_model_s_own_variance(self):
        history = planted("binary", missing=0.05)
        estimator = make_estimator("mirt", dimensions=2).fit(history)
        truth = history.values[:20].astype(np.float64)
        (chosen,) = variance_reduction_design(estimator, truth, [8], np.random.default_rng(0))
        (drawn,) = random_design(estimator, truth, [8], np.random.default_rng(0))
        assert (~np.isnan(chosen)).sum(axis=1).tolist() == [8] * 20
        assert estimator.benchmark_score(chosen).std.mean() < estimator.benchmark_score(drawn).std.mean()


class TestCorrection:
    def test_learns_a_smooth_error(self):
        rng = np.random.default_rng(9)
        features = rng.standard_normal((300, 3))
        residual = 0.1 * np.sin(2 * features[:, 0]) + 0.02 * rng.standard_normal(300)
        correction = fit_correction(features, residual, np.full(300, 0.05), rng)
        fresh = rng.standard_normal((200, 3))
        error = correction(fresh) - 0.1 * np.sin(2 * fresh[:, 0])
        assert np.abs(error).mean() < 0.03

    def test_makes_noise_no_worse(self):
        rng = np.random.default_rng(10)
        features, residual = rng.standard_normal((300, 8)), 0.05 * rng.standard_normal(300)
        correction = fit_correction(features, residual, np.full(300, 0.05), rng)
        assert np.abs(correction(rng.standard_normal((100, 8)))).max() < 0.03
        assert correction.spread == pytest.approx(1.0, abs=0.15)

    def test_complete_rows_are_never_corrected(self):
        history = planted("binary", missing=0.0)
        estimator = make_estimator("corrected:linear-gaussian", base_params={"rank": 2}).fit(history)
        full = history.values[:4].astype(np.float64)
        np.testing.assert_allclose(estimator.benchmark_score(full).mean, full @ history.weights, atol=1e-9)

    def test_refuses_unknown_designs(self):
        with pytest.raises(BadInputError, match="designs must be"):
            make_estimator("corrected:mirt", designs=["psychic"]).fit(planted())


class TestSmallParts:
    def test_anchors_stand_for_their_like_within_a_dataset(self):
        features = np.array([[0.0], [1.0], [5.0], [0.1]])
        datasets = np.array([0, 0, 0, 1])
        observed = np.array([[1.0, np.nan, 0.0, np.nan], [np.nan, np.nan, np.nan, np.nan]])
        scores = _anchored(observed, features, datasets, np.full(4, 0.25))
        np.testing.assert_allclose(scores, [0.75, 0.0])  # the fourth has no one of its own dataset

    def test_known_scores_rescale_the_weights(self):
        values = np.array([[1.0, np.nan, 0.0], [np.nan, np.nan, np.nan]])
        np.testing.assert_allclose(known_scores(values, np.array([0.25, 0.5, 0.25])), [0.5, 0.0])

    def test_folds_cover_every_row_once(self):
        for n, every, folds in ((7, False, 5), (300, True, 5), (300, False, 1), (3, False, 3)):
            pairs = row_folds(n, 0, every=every)
            assert len(pairs) == folds
            held = np.concatenate([test for _, test in pairs])
            assert len(set(held.tolist())) == len(held)
            assert all(len(set(train) & set(test)) == 0 for train, test in pairs)
            assert folds == 1 or sorted(held.tolist()) == list(range(n))

    def test_gp_irt_needs_no_more_than_mirt_does(self):
        estimator = make_estimator("gp-irt", dimensions=1).fit(ScoreMatrix.build(planted().values[:6]))
        assert (estimator.blend_[1] == 0).all()
