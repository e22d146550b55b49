"""Histories, estimators and states to try any policy on; a new policy joins by being registered."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from assay.matrix import ScoreMatrix
from estimators import Estimator, Linearization, Prediction, ScoreEstimate, check_observed, make_estimator
from policies import Policy, PolicyState, SupportsTraining, make_policy

N_DATASETS = 3
N_PROMPTS = 24
N_METHODS = 40
SMALL: dict[str, dict[str, Any]] = {
    "combinatorial": {"models": 6, "candidates": 5},
    "ppo": {"updates": 2, "episodes": 8, "prompts": 8, "first_prompts": 4, "batch": 2, "minibatch": 16},
}
OWN_MODEL = {
    "static-design": "linear-gaussian",
    "cluster-irt": "mirt",
}  # fitted once


class FactorEstimator(Estimator):
    """A linear-Gaussian factor model (principal components): small, exact, with all that a policy may ask."""

    name: ClassVar[str] = "factor-for-tests"
    rank = 3

    def _fit(self, history: ScoreMatrix, warm_start: Any) -> None:
        values = np.nan_to_num(history.values.astype(float), nan=0.5)
        self.mean_ = values.mean(axis=0)
        u, s, vt = np.linalg.svd(values - self.mean_, full_matrices=False)
        self.loadings_ = vt[: self.rank].T * s[: self.rank] / np.sqrt(len(values))
        residual = values - self.mean_ - u[:, : self.rank] * s[: self.rank] @ vt[: self.rank]
        self.noise_ = residual.var(axis=0) + 1e-2

    def linearize(self, observed: Any) -> Linearization:
        observed = check_observed(self, observed)
        seen = ~np.isnan(observed)
        means, covariances = [], []
        for row, mask in zip(observed, seen, strict=True):
            a, noise = self.loadings_[mask], self.noise_[mask]
            covariance = np.linalg.inv(np.eye(self.rank) + a.T @ (a / noise[:, None]))
            latent = covariance @ (a.T @ ((row[mask] - self.mean_[mask]) / noise))
            means.append(np.where(mask, row, self.mean_ + self.loadings_ @ latent))
            covariances.append(covariance)
        noise = np.broadcast_to(self.noise_, observed.shape)
        return Linearization(np.array(means), self.loadings_, np.array(covariances), noise)

    def predict(self, observed: Any) -> Prediction:
        line = self.linearize(observed)
        spread = np.einsum("nd,bde,ne->bn", line.loadings, line.covariance, line.loadings) + line.noise
        return Prediction(line.mean, np.where(np.isnan(observed), spread, 0.0))

    def sample(self, observed: Any, n: int, rng: np.random.Generator) -> Any:
        prediction = self.predict(observed)
        shape = (len(prediction.mean), n, prediction.mean.shape[1])
        noise = rng.standard_normal(shape) * np.sqrt(prediction.variance)[:, None]
        return prediction.mean[:, None] + noise

    def benchmark_score(self, observed: Any) -> ScoreEstimate:
        line = self.linearize(observed)
        left = np.isnan(observed) * self.weights_
        g = left @ line.loadings
        variance = np.einsum("bd,bde,be->b", g, line.covariance, g) + (left**2 * line.noise).sum(axis=1)
        return ScoreEstimate(line.mean @ self.weights_, np.sqrt(variance))

    def prompt_features(self) -> Any:
        return self.loadings_

    def _arrays(self) -> dict[str, Any]:
        return {"mean": self.mean_, "loadings": self.loadings_, "noise": self.noise_}

    def _restore(self, arrays: dict[str, Any]) -> None:
        self.mean_, self.loadings_, self.noise_ = arrays["mean"], arrays["loadings"], arrays["noise"]


@lru_cache(maxsize=1)
def history() -> ScoreMatrix:
    """40 methods x 24 prompts in 3 unequal datasets, binary, a few entries missing, with embeddings."""
    rng = np.random.default_rng(7)
    names = [f"d{d}" for d in np.sort(np.arange(N_PROMPTS) ** 2 % N_DATASETS)]
    ability, difficulty = rng.normal(size=(N_METHODS, 2)), rng.normal(size=(N_PROMPTS, 2))
    values = (ability @ difficulty.T + rng.normal(size=(N_METHODS, N_PROMPTS)) > 0).astype(float)
    values[rng.random(values.shape) < 0.02] = np.nan
    return ScoreMatrix.build(values, prompt_datasets=names, embeddings=rng.normal(size=(N_PROMPTS, 5)))


@lru_cache(maxsize=1)
def estimator() -> Estimator:
    """A fitted estimator that supports all that the built-in policies may ask of one."""
    return FactorEstimator().fit(history())


@lru_cache(maxsize=1)
def twins() -> tuple[ScoreMatrix, Estimator]:
    """The history with its first two prompts alike in all that is known of them, and an estimator of it."""
    matrix = history()
    assert matrix.embeddings is not None
    values, vectors = matrix.values.copy(), matrix.embeddings.copy()
    values[:, 1], vectors[1] = values[:, 0], vectors[0]
    alike = replace(matrix, values=values, embeddings=vectors)
    return alike, FactorEstimator().fit(alike)


@lru_cache(maxsize=4)
def fitted(name: str) -> Estimator:
    """A registered estimator, fitted once for all tests."""
    return make_estimator(name).fit(history())


@lru_cache(maxsize=4)
def trained(name: str, seed: int) -> Path:
    """Where a policy that must be trained lies, trained once for all tests."""
    policy = make_policy(name, seed=seed, **SMALL[name])
    assert isinstance(policy, SupportsTraining)
    policy.train(history(), estimator())
    folder = Path(tempfile.mkdtemp(prefix="assay-policy-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    policy.save(folder)
    return folder


def build_policy(name: str, seed: int = 0) -> Policy:
    """A fresh, prepared policy, with the smallest settings where the default ones are slow."""
    policy = make_policy(name, seed=seed, **SMALL.get(name, {}))
    if isinstance(policy, SupportsTraining):
        policy.restore(trained(name, seed))
    own_model = OWN_MODEL.get(name)
    policy.prepare(history(), fitted(own_model) if own_model else estimator())
    return policy


def make_state(
    *, rows: int = 1, known: int = 0, pending: int = 0, unavailable: int = 0, seed: int = 0, **changes: Any
) -> PolicyState:
    """A state whose cells are known, pending or unavailable at random, so many of each per row."""
    rng = np.random.default_rng([seed, rows, known, pending, unavailable])
    scores = np.full((rows, N_PROMPTS), np.nan)
    waiting = np.zeros(scores.shape, dtype=bool)
    available = np.ones(scores.shape, dtype=bool)
    for i in range(rows):
        order = rng.permutation(N_PROMPTS)
        scores[i, order[:known]] = rng.integers(0, 2, known)
        waiting[i, order[known : known + pending]] = True
        available[i, order[known + pending : known + pending + unavailable]] = False
    state = PolicyState(
        scores=scores,
        pending=waiting,
        available=available,
        cost=np.ones(scores.shape),
        weights=history().weights,
        dataset_index=history().dataset_index,
        estimator=estimator(),
        rng=np.random.default_rng(seed),
        total=rows * 12,
        embeddings=history().embeddings,
    )
    return replace(state, **changes)
