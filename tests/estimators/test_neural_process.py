"""What the neural process promises beyond the contract of every estimator."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix, ScoreType
from estimators import make_estimator
from estimators._neural_process import NeuralProcessEstimator
from tests.estimators.matrices import partly, planted

TINY = {
    "steps": 10,
    "batch": 8,
    "targets": 10,
    "width": 8,
    "heads": 2,
    "induced": 2,
    "layers": 1,
    "device": "cpu",
}


def tiny(**params) -> NeuralProcessEstimator:
    return NeuralProcessEstimator(**{**TINY, **params})


@cache
def fitted() -> NeuralProcessEstimator:
    return tiny().fit(planted("binary"))


def test_is_registered():
    assert isinstance(make_estimator("neural-process"), NeuralProcessEstimator)


def test_few_rows_get_linear_layers():
    matrix = planted("binary")
    assert fitted().model_.network.shape.attentive
    assert not tiny(steps=1).fit(matrix.rows(range(30))).model_.network.shape.attentive


def test_fitting_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    tiny(steps=1).fit(planted("binary"))
    torch.testing.assert_close(torch.rand(2), expected)


def test_another_seed_is_another_network():
    other, observed = tiny(seed=1).fit(planted("binary")), partly(planted("binary", seed=2).values, 8)
    assert np.abs(other.predict(observed).mean - fitted().predict(observed).mean).max() > 1e-4


@pytest.mark.parametrize("params", [{"steps": 0}, {"batch": 0}, {"width": 10, "heads": 4}])
def test_impossible_settings_are_refused(params):
    with pytest.raises(BadInputError):
        tiny(**params).fit(planted("binary"))


def test_a_warm_start_without_training_predicts_as_before_wherever_the_columns_went():
    matrix = planted("binary")
    order = np.random.default_rng(0).permutation(matrix.n_prompts)
    moved = ScoreMatrix.build(
        matrix.values[:, order],
        prompt_ids=[matrix.prompt_ids[i] for i in order],
        prompt_datasets=[matrix.datasets[matrix.dataset_index[i]] for i in order],
        embeddings=matrix.embeddings[order],
    )
    again = tiny(rate=0.0).fit(moved, warm_start=fitted())
    observed = partly(planted("binary", seed=2).values, 8)
    np.testing.assert_allclose(
        again.predict(observed[:, order]).mean, fitted().predict(observed).mean[:, order], atol=0.05
    )


def test_a_warm_start_takes_a_small_share_of_the_steps():
    estimator = tiny(steps=100)
    assert estimator._training(warm=True).steps <= estimator._training(warm=False).steps / 4


def test_prompts_without_history_are_predicted_from_their_text():
    rng = np.random.default_rng(0)
    text = rng.standard_normal((60, 1))
    level = 1 / (1 + np.exp(-(rng.standard_normal((200, 1)) + 2.0 * text.T)))
    values = (rng.random(level.shape) < level).astype(float)
    history = values[:150].copy()
    history[:, 45:] = np.nan
    observed = np.full((50, 60), np.nan)
    observed[:, :10] = values[150:, :10]
    matrix = ScoreMatrix.build(history, embeddings=text)
    mean = tiny(steps=60).fit(matrix).predict(observed).mean[:, 45:]
    assert np.corrcoef(mean.mean(axis=0), level[:, 45:].mean(axis=0))[0, 1] > 0.8


def test_categorical_scores_stay_on_their_levels():
    rng = np.random.default_rng(0)
    values = rng.binomial(4, 1 / (1 + np.exp(-rng.standard_normal((60, 1)) - rng.standard_normal(12)))) / 4
    matrix = ScoreMatrix.build(values, score_types={"all": ScoreType.CATEGORICAL})
    estimator = tiny().fit(matrix)
    observed = partly(values, 4)
    draws = estimator.sample(observed, 20, np.random.default_rng(0))
    assert set(np.unique(draws)) <= {0.0, 0.25, 0.5, 0.75, 1.0}
    variance = estimator.predict(observed).variance
    assert (variance[np.isnan(observed)] > 0).all()


def test_the_latent_grows_more_certain_with_every_score():
    values = planted("binary", seed=2).values
    _, few = fitted().latent_posterior(partly(values, 2))
    mean, many = fitted().latent_posterior(partly(values, 20))
    assert mean.shape == many.shape == (len(values), fitted().model_.network.shape.latent)
    assert many.mean() < few.mean()


def test_the_linearization_has_the_scores_spread():
    observed = partly(planted("binary", seed=2).values, 8)
    estimator = fitted()
    line, unseen = estimator.linearize(observed), np.isnan(observed)
    weights = np.where(unseen, estimator.weights_, 0.0)
    slope = np.einsum("bn,bnd->bd", weights, line.loadings)
    variance = np.einsum("bd,bde,be->b", slope, line.covariance, slope) + (weights**2 * line.noise).sum(
        axis=1
    )
    _, std = estimator._score(observed)
    assert (np.abs(np.log(np.sqrt(variance) / std)) < 0.3).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_predicts_as_the_cpu_does(tmp_path):
    matrix, observed = planted("mixed"), partly(planted("mixed", seed=2).values, 8)
    estimator = tiny(device="cuda").fit(matrix)
    on_gpu = estimator.predict(observed).mean
    estimator.model_.cpu()
    np.testing.assert_allclose(estimator.predict(observed).mean, on_gpu, atol=1e-3)
