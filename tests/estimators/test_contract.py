"""What every registered estimator keeps to; an estimator joins by being in the registry."""

from __future__ import annotations

import inspect
from functools import cache

import numpy as np
import pytest

from assay.errors import BadInputError, NotFittedError
from assay.matrix import ScoreMatrix
from estimators import ESTIMATORS, Estimator, SupportsLinearization, SupportsPromptFeatures, make_estimator
from estimators._artifact import load_estimator
from tests.estimators.matrices import KINDS, partly, planted

# Settings that keep the suite fast; what is not named here runs with its defaults.
QUICK: dict[str, dict[str, object]] = {
    "neural-process": {
        "steps": 30,
        "batch": 16,
        "targets": 16,
        "width": 16,
        "heads": 2,
        "induced": 4,
        "layers": 1,
    },
    "auto": {"candidates": ["linear-gaussian", "aggregate"]},
    "corrected": {"base_params": {"dimensions": 2, "sweeps": 10}},
}
# A registered head that cannot stand alone is tested around this base.
ARGUMENT: dict[str, str] = {"corrected": "mirt", "cold-start": "linear-gaussian"}
# Estimators that do not learn from other rows: nothing to expect of them beyond the observed.
BLIND = {"aggregate", "x-pirt", "x-pirt-discrete", "x-pirt-embedding", "x-pirt-examples"}

HISTORY_ROWS = 60
names = pytest.mark.parametrize("name", ESTIMATORS.names())
kinds = pytest.mark.parametrize("kind", KINDS)


def make(name: str) -> Estimator:
    full = f"{name}:{ARGUMENT[name]}" if name in ARGUMENT else name
    return make_estimator(full, **QUICK.get(name, {}))


@cache
def matrices(kind: str) -> tuple[ScoreMatrix, ScoreMatrix]:
    """History and new rows."""
    matrix = planted(kind)
    return matrix.rows(range(HISTORY_ROWS)), matrix.rows(range(HISTORY_ROWS, matrix.n_methods))


@cache
def fitted(name: str, kind: str) -> Estimator:
    return make(name).fit(matrices(kind)[0])


def observed_rows(kind: str, count: int = 12) -> np.ndarray:
    return partly(matrices(kind)[1].values, count)


def assert_same(first: Estimator, second: Estimator, observed: np.ndarray) -> None:
    a, b = first.predict(observed), second.predict(observed)
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.variance, b.variance)
    x, y = first.benchmark_score(observed), second.benchmark_score(observed)
    np.testing.assert_array_equal(x.mean, y.mean)
    np.testing.assert_array_equal(x.std, y.std)


def assert_valid(estimator: Estimator, observed: np.ndarray) -> None:
    prediction = estimator.predict(observed)
    score = estimator.benchmark_score(observed)
    assert prediction.mean.shape == prediction.variance.shape == observed.shape
    assert score.mean.shape == score.std.shape == (len(observed),)
    assert ((prediction.mean >= 0) & (prediction.mean <= 1)).all()
    assert (np.isfinite(prediction.variance) & (prediction.variance >= 0)).all()
    assert ((score.mean >= 0) & (score.mean <= 1)).all()
    assert (np.isfinite(score.std) & (score.std >= 0)).all()


@names
class TestEveryEstimator:
    def test_constructor_only_stores_and_params_rebuild(self, name):
        estimator = make(name)
        assert estimator.n_prompts_ is None
        assert estimator.name == name
        stored = estimator.params()
        accepted = set(inspect.signature(type(estimator).__init__).parameters) - {"self"}
        assert set(stored) == accepted
        assert type(estimator)(**stored).params() == stored
        assert {key: getattr(estimator, key) for key in stored} == stored

    def test_not_fitted(self, name):
        with pytest.raises(NotFittedError, match="not fitted"):
            make(name).predict(np.full((1, 4), np.nan))

    def test_empty_history(self, name):
        empty = ScoreMatrix.build(np.full((3, 4), np.nan))
        if type(make(name)).needs_history:
            with pytest.raises(BadInputError, match="needs history"):
                make(name).fit(empty)
        else:
            assert_valid(make(name).fit(empty), np.array([[1.0, np.nan, np.nan, 0.0]]))

    @pytest.mark.parametrize(
        ("observed", "message"),
        [
            (np.full((2, 7), np.nan), "shape"),
            (np.full(30, np.nan), "shape"),
            (np.full((1, 30), np.inf), "infinite"),
            (np.full((1, 30), -np.inf), "infinite"),
            (np.full((1, 30), 1.5), "outside"),
            (np.full((1, 30), -0.5), "outside"),
        ],
    )
    def test_refuses_bad_rows(self, name, observed, message):
        estimator = fitted(name, "binary")
        for answer in (
            estimator.predict,
            estimator.benchmark_score,
            lambda rows: estimator.sample(rows, 2, np.random.default_rng(0)),
        ):
            with pytest.raises(BadInputError, match=message):
                answer(observed)

    @kinds
    def test_predictions_are_valid_from_nothing_to_everything_observed(self, name, kind):
        estimator = fitted(name, kind)
        values = matrices(kind)[1].values
        for count in (0, 1, 12, values.shape[1]):
            assert_valid(estimator, partly(values, count))

    @kinds
    def test_observed_entries_are_kept(self, name, kind):
        estimator, observed = fitted(name, kind), observed_rows(kind)
        seen = ~np.isnan(observed)
        prediction = estimator.predict(observed)
        np.testing.assert_array_equal(prediction.mean[seen], observed[seen])
        assert (prediction.variance[seen] == 0).all()
        draws = estimator.sample(observed, 3, np.random.default_rng(0))
        assert draws.shape == (len(observed), 3, observed.shape[1])
        assert ((draws >= 0) & (draws <= 1)).all()
        for draw in range(3):
            np.testing.assert_array_equal(draws[:, draw][seen], observed[seen])

    def test_everything_observed_leaves_no_doubt(self, name):
        full = planted("binary", missing=0.0, seed=3).values[:5].astype(np.float64)
        estimator = fitted(name, "binary")
        score = estimator.benchmark_score(full)
        np.testing.assert_allclose(score.mean, full @ estimator.weights_, atol=1e-6)
        assert (score.std < 1e-6).all()

    @kinds
    def test_samples_agree_with_predictions(self, name, kind):
        estimator, observed = fitted(name, kind), observed_rows(kind)[:5]
        draws = estimator.sample(observed, 1500, np.random.default_rng(1))
        prediction = estimator.predict(observed)
        assert np.abs(draws.mean(axis=1) - prediction.mean).mean() < 0.03
        score = estimator.benchmark_score(observed)
        spread = (draws @ estimator.weights_).std(axis=1)
        assert (np.abs(np.log(spread / score.std)) < np.log(2.0)).all()

    @kinds
    def test_benchmark_score_agrees_with_predictions(self, name, kind):
        estimator, observed = fitted(name, kind), observed_rows(kind)
        score = estimator.benchmark_score(observed)
        from_prompts = estimator.predict(observed).mean @ estimator.weights_
        assert (np.abs(score.mean - from_prompts) < 2.0 * score.std + 1e-6).all()

    def test_rows_are_predicted_independently(self, name):
        if fitted(name, "mixed").joint:
            pytest.skip("its rows inform each other")
        estimator, observed = fitted(name, "mixed"), observed_rows("mixed")
        together, alone = estimator.predict(observed), estimator.predict(observed[2:3])
        np.testing.assert_allclose(together.mean[2:3], alone.mean, atol=1e-5)
        np.testing.assert_allclose(together.variance[2:3], alone.variance, atol=1e-5)
        np.testing.assert_allclose(
            estimator.benchmark_score(observed).mean[2:3],
            estimator.benchmark_score(observed[2:3]).mean,
            atol=1e-5,
        )

    def test_settled_params_fit_the_same(self, name):
        estimator = fitted(name, "binary")
        again = type(estimator)(**estimator.settled_params()).fit(matrices("binary")[0])
        assert_same(estimator, again, observed_rows("binary"))

    def test_same_seed_same_result(self, name):
        history, _ = matrices("mixed")
        first, second = fitted(name, "mixed"), make(name).fit(history)
        observed = observed_rows("mixed")
        assert_same(first, second, observed)
        np.testing.assert_array_equal(
            first.sample(observed, 2, np.random.default_rng(5)),
            second.sample(observed, 2, np.random.default_rng(5)),
        )

    @kinds
    def test_save_and_load(self, name, kind, tmp_path):
        estimator = fitted(name, kind)
        estimator.save(tmp_path / "saved")
        loaded = load_estimator(tmp_path / "saved")
        assert type(loaded) is type(estimator)
        assert loaded.params() == estimator.params()
        assert_same(estimator, loaded, observed_rows(kind))

    def test_damaged_artifact_is_refused(self, name, tmp_path):
        fitted(name, "binary").save(tmp_path)
        path = tmp_path / "arrays.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + b"\x01\x02\x03\x04")
        with pytest.raises(BadInputError, match="checksum"):
            load_estimator(tmp_path)

    @kinds
    def test_beats_chance_on_planted_structure(self, name, kind):
        estimator, new = fitted(name, kind), matrices(kind)[1]
        observed = observed_rows(kind)
        hidden = new.observed & np.isnan(observed)
        baseline = np.nanmean(matrices(kind)[0].values, axis=0)
        error = ((estimator.predict(observed).mean - new.values)[hidden] ** 2).mean()
        chance = ((baseline - new.values)[hidden] ** 2).mean()
        assert error < (1.3 if name in BLIND else 0.9) * chance

    def test_more_scores_narrow_the_estimate(self, name):
        estimator, values = fitted(name, "binary"), matrices("binary")[1].values
        few = estimator.benchmark_score(partly(values, 3)).std.mean()
        many = estimator.benchmark_score(partly(values, 20)).std.mean()
        assert many < few

    def test_warm_start_with_new_rows_and_columns(self, name):
        history, new = matrices("binary")
        narrow = ScoreMatrix.build(history.values[:40, :25])
        earlier = make(name).fit(narrow)
        refitted = make(name).fit(history, warm_start=earlier)
        assert refitted.n_prompts_ == history.n_prompts
        assert earlier.n_prompts_ == 25
        assert_valid(refitted, partly(new.values, 8))

    def test_few_rows_and_columns_without_scores(self, name):
        values = planted("binary").values[:3].copy()
        values[:, 4] = np.nan
        values[1] = np.nan
        estimator = make(name).fit(ScoreMatrix.build(values))
        assert_valid(estimator, partly(planted("binary", seed=2).values[:4], 6))

    def test_constant_scores(self, name):
        estimator = make(name).fit(ScoreMatrix.build(np.ones((8, 5))))
        assert_valid(estimator, np.array([[1.0, np.nan, np.nan, 0.0, np.nan]]))

    @kinds
    def test_linearization(self, name, kind):
        estimator, observed = fitted(name, kind), observed_rows(kind)
        if not isinstance(estimator, SupportsLinearization):
            pytest.skip("does not linearise")
        line = estimator.linearize(observed)
        b, n = observed.shape
        d = line.covariance.shape[-1]
        assert line.mean.shape == line.noise.shape == (b, n)
        assert line.loadings.shape in {(n, d), (b, n, d)}
        assert line.covariance.shape == (b, d, d)
        assert (np.linalg.eigvalsh(line.covariance) >= -1e-9).all()
        assert (line.noise > 0).all()
        assert (line.mean >= -0.5).all()
        assert (line.mean <= 1.5).all()

    def test_prompt_features(self, name):
        estimator = fitted(name, "binary")
        if not isinstance(estimator, SupportsPromptFeatures):
            pytest.skip("has no prompt features")
        features = estimator.prompt_features()
        assert features.ndim == 2
        assert features.shape[0] == estimator.n_prompts_
        assert np.isfinite(features).all()
