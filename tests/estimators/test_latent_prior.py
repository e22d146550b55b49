"""The kernel density over the history's latents: its posterior, and what it is good for."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import make_estimator
from estimators._latent_prior import BROAD_SHARE, LatentPrior

CENTRES = np.array([[-1.0, 0.5], [0.2, -0.3], [1.4, 0.1]])


def grid_posterior(prior, precision, pull):
    """Mean and covariance of prior times likelihood by summing over a grid of the plane."""
    line = np.linspace(-6.0, 6.0, 601)
    points = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    tight = prior.bandwidth**2
    squares = ((points[:, None] - prior.centres) ** 2).sum(axis=2)
    kernels = np.exp(-0.5 * squares / tight).mean(axis=1) / tight
    density = (1 - BROAD_SHARE) * kernels + BROAD_SHARE * np.exp(-0.5 * (points**2).sum(axis=1))
    likelihood = points @ pull - 0.5 * np.einsum("pi,ij,pj->p", points, precision, points)
    weight = density * np.exp(likelihood - likelihood.max())
    weight /= weight.sum()
    mean = weight @ points
    return mean, np.einsum("p,pi,pj->ij", weight, points - mean, points - mean)


@pytest.mark.parametrize("strength", [0.0, 0.5, 8.0])
def test_the_posterior_is_the_product_of_prior_and_likelihood(strength):
    prior = LatentPrior(CENTRES, 0.3)
    precision = strength * np.array([[1.0, 0.3], [0.3, 0.6]])
    pull = precision @ np.array([0.9, -0.4])
    mean, covariance = prior.posterior(precision[None], pull[None])
    wanted_mean, wanted_covariance = grid_posterior(prior, precision, pull)
    np.testing.assert_allclose(mean[0], wanted_mean, atol=1e-6)
    np.testing.assert_allclose(covariance[0], wanted_covariance, atol=1e-6)


def test_blocks_of_rows_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((9, 2, 2))
    precision, pull = root @ root.transpose(0, 2, 1), rng.standard_normal((9, 2))
    whole = LatentPrior(CENTRES, 0.3).posterior(precision, pull)
    monkeypatch.setattr("estimators._latent_prior.BLOCK_ENTRIES", 12)
    for part, all_at_once in zip(LatentPrior(CENTRES, 0.3).posterior(precision, pull), whole, strict=True):
        np.testing.assert_allclose(part, all_at_once)


def test_a_method_far_from_all_of_the_historys_keeps_the_broad_normal():
    precision, far = 50.0 * np.eye(2), np.array([4.0, -4.0])
    mean, _ = LatentPrior(CENTRES, 0.1).posterior(precision[None], (precision @ far)[None])
    np.testing.assert_allclose(mean[0], far * 50.0 / 51.0, atol=1e-6)


def families(rng, kinds=12, each=25, n=200, d=4):
    """Scores of fine-tunes of a few models: latents in tight clumps."""
    clumps = rng.standard_normal((kinds, d))
    latents = np.repeat(clumps, each, axis=0) + 0.1 * rng.standard_normal((kinds * each, d))
    logit = latents @ (1.5 * rng.standard_normal((n, d))).T + rng.standard_normal(n)
    scores = (rng.random(logit.shape) < 1.0 / (1.0 + np.exp(-logit))).astype(np.float32)
    return scores[rng.permutation(len(scores))]


def test_families_are_noticed_and_help():
    scores = families(np.random.default_rng(1))
    history, new = ScoreMatrix.build(scores[:250]), scores[250:].astype(np.float64)
    observed = np.where(np.random.default_rng(2).random(new.shape) < 0.1, new, np.nan)

    def error(**params):
        estimator = make_estimator("mirt", dimensions=4, **params).fit(history)
        found = estimator.benchmark_score(observed).mean
        return estimator, float(np.abs(found - new.mean(axis=1)).mean())

    chosen, with_families = error()
    assert chosen.settled_params()["bandwidth"] is not None
    assert with_families < 0.95 * error(bandwidth=None)[1]


def test_rows_with_few_scores_are_no_centres():
    scores = families(np.random.default_rng(3))
    scores[:100, 50:] = np.nan
    estimator = make_estimator("mirt", dimensions=2, bandwidth=0.3).fit(ScoreMatrix.build(scores))
    assert len(estimator.prior_.centres) == 200


@pytest.mark.parametrize("bandwidth", [0.0, 1.0, -0.1])
def test_a_bandwidth_out_of_range_is_refused(bandwidth):
    with pytest.raises(BadInputError, match="bandwidth"):
        make_estimator("mirt", bandwidth=bandwidth).fit(ScoreMatrix.build(families(np.random.default_rng(4))))
