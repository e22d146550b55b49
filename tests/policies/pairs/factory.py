"""Pairs to try any pair policy on; a new policy joins by being registered."""

from __future__ import annotations

import numpy as np

from policies.pairs import PairHistory, PairPolicy, PairProblem, make_pair_policy

N, D, P, M, DESCRIBED = 60, 6, 4, 12, 8


def history() -> PairHistory:
    """12 methods x 60 prompts, a few scores unknown, outputs of the first 8 described."""
    rng = np.random.default_rng(2)
    ability, features = rng.normal(size=M), rng.normal(size=(M, N, P))
    features[:, :, 0] += rng.normal(size=(M, 1))  # methods differ in it, too
    scores = ability[:, None] + features[:, :, 0] + rng.normal(size=(M, N))
    scores[rng.random(scores.shape) < 0.02] = np.nan
    likeness = rng.random((DESCRIBED, DESCRIBED, N)).astype(np.float32)
    return PairHistory(scores, tuple(range(DESCRIBED)), features[:DESCRIBED], likeness)


def problem(seed: int = 0, n: int = N) -> PairProblem:
    """A pair with vectors and features."""
    rng = np.random.default_rng([5, seed])
    first, second, inputs = (rng.normal(size=(n, D)).astype(np.float32) for _ in range(3))
    features, likeness = rng.normal(size=(2, n, P)), rng.random((2, DESCRIBED, n)).astype(np.float32)
    return PairProblem(n, first, second, inputs, features, likeness, np.arange(n), (seed,))


def answers(seed: int = 0, n: int = N, lead: float = 0.3) -> np.ndarray:
    """Verdicts of which A wins somewhat more."""
    rng = np.random.default_rng([9, seed])
    return np.sign(np.round(rng.normal(lead, 1.0, n), 1))


def build(name: str) -> PairPolicy:
    """A prepared pair policy."""
    policy = make_pair_policy(name)
    policy.prepare(history())
    return policy
