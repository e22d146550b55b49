"""How long policies take to choose: CPU milliseconds per decision.

    python -m benchmarks.decision_time

Synthetic estimators, since the time depends on the sizes only: N prompts, D latent dimensions, 100 known.
With "given", the linearisation is made beforehand; the other times include the estimator's own work. By
sampling, each candidate's two answers are tried on a latent's posterior.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from benchmarks.report import update_section
from estimators import Estimator, Linearization, Prediction, make_estimator
from estimators._latent_prior import LatentPrior
from estimators._logistic_posterior import latent_posterior
from estimators._mirt import MirtEstimator
from policies import Policy, make_policy
from policies.acquisition import build_state

SIZES = ((1075, 8), (1075, 16), (12032, 8), (12032, 16))
BATCHES = (1, 10)
GIVEN = ("expected-variance-reduction", "information-gain")
REPEATS = 20
KNOWN = 100
KERNELS = 1300


class Given:
    """Stands in for a fitted estimator: returns a linearisation that was made beforehand."""

    name = "given"

    def __init__(self, n: int, d: int) -> None:
        rng = np.random.default_rng(0)
        self.line = Linearization(
            rng.random((1, n)), rng.normal(size=(1, n, d)), np.eye(d)[None] * 0.1, np.full((1, n), 0.2)
        )

    def linearize(self, observed: object) -> Linearization:
        """The linearisation made beforehand."""
        return self.line

    def candidates_per_choice(self) -> int:
        """All."""
        return 0


class Sampled:
    """An estimator with a latent that cannot be linearised: what information gain has to try answers on."""

    name = "sampled"

    def __init__(self, base: MirtEstimator) -> None:
        self.base = base

    def predict(self, observed: NDArray[np.float64]) -> Prediction:
        """The base's."""
        return self.base.predict(observed)

    def latent_entropy(self, observed: NDArray[np.float64]) -> NDArray[np.float64]:
        """(B,) entropy of the Gaussian posterior of each row's latent, without its constant."""
        covariance = latent_posterior(self.base.model_, observed).covariance
        return np.asarray(0.5 * np.linalg.slogdet(covariance)[1])


def history(n: int) -> ScoreMatrix:
    """Scores of 150 methods that one ability explains, in 5 datasets, with prompt vectors."""
    rng = np.random.default_rng(0)
    logit = rng.normal(size=(150, 1)) - rng.normal(size=(1, n))
    values = (rng.random((150, n)) < 1 / (1 + np.exp(-logit))).astype(float)
    return ScoreMatrix.build(
        values, prompt_datasets=[f"d{j * 5 // n}" for j in range(n)], embeddings=rng.normal(size=(n, 16))
    )


def decide(policy: Policy, estimator: Estimator, n: int, batch: int) -> Callable[[], object]:
    """One decision of a study that knows 100 scores."""
    scores = np.full((1, n), np.nan)
    scores[0, np.random.default_rng(1).permutation(n)[:KNOWN]] = 1.0
    state = build_state(
        scores,
        seed=0,
        methods=("m",),
        weights=np.full(n, 1.0 / n),
        dataset_index=np.zeros(n, dtype=np.intp),
        estimator=estimator,
    )
    return lambda: policy.select(state, batch)


def milliseconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median CPU time."""
    times = []
    call()
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1000.0 * float(np.median(times))


def given_rows() -> list[list[str]]:
    """Policies with a linearisation at hand."""
    rows = []
    for name in GIVEN:
        for n, d in SIZES:
            estimator: Estimator = Given(n, d)  # type: ignore[assignment]
            times = [milliseconds(decide(make_policy(name), estimator, n, b)) for b in BATCHES]
            rows.append([name, "given", str(n), str(d), *(f"{t:.2f}" for t in times)])
    for n, d in SIZES:
        estimator = Given(n, d)  # type: ignore[assignment]
        times = [milliseconds(decide(untrained(n), estimator, n, b)) for b in BATCHES]
        rows.append(["ppo", "given", str(n), str(d), *(f"{t:.2f}" for t in times)])
    return rows


def untrained(n: int) -> Policy:
    """A learned policy as it begins: its time depends on the sizes only."""
    rows = history(n).rows(np.arange(8))
    policy = make_policy("ppo", updates=1, episodes=1, prompts=2, batch=1)
    policy.prepare(rows, make_estimator("linear-gaussian", rank=4).fit(rows))
    return policy


def fitted(name: str, n: int) -> tuple[Estimator, int]:
    """An estimator fitted to that many prompts, and its latent dimensions."""
    if name == "neural-process":
        return make_estimator(name, steps=20, batch=16).fit(history(n)), 32
    return make_estimator(name, dimensions=8, bandwidth=None, sweeps=5).fit(history(n)), 8


def with_kernels(n: int) -> tuple[Estimator, int]:
    """`mirt` at the largest size that it chooses, with as many kernels as Open LLM has training models."""
    d = 32
    estimator = make_estimator("mirt", dimensions=d, bandwidth=None, sweeps=3).fit(history(n))
    assert isinstance(estimator, MirtEstimator)
    estimator.prior_ = LatentPrior(np.random.default_rng(0).standard_normal((KERNELS, d)), 0.17)
    return estimator, d


def whole_rows() -> list[list[str]]:
    """Policies with the estimator's own work."""
    rows = []
    for n in (1075, 12032):
        mirt, d = fitted("mirt", n)
        rows += [_whole(name, "mirt", mirt, n, d) for name in GIVEN]
        kernels, d = with_kernels(n)
        rows += [_whole(name, f"mirt, {KERNELS:,} kernels", kernels, n, d) for name in GIVEN]
    process, d = fitted("neural-process", 1075)
    rows += [_whole(name, "neural-process", process, 1075, d) for name in GIVEN]
    times = [milliseconds(decide(untrained(1075), process, 1075, b), repeats=7) for b in BATCHES]
    rows.append(["ppo", "neural-process", "1075", str(d), *(f"{t:.2f}" for t in times)])
    mirt, d = fitted("mirt", 1075)
    assert isinstance(mirt, MirtEstimator)
    sampled: Estimator = Sampled(mirt)  # type: ignore[assignment]
    rows.append(_whole("information-gain", "mirt, by sampling", sampled, 1075, d))
    return rows


def _whole(policy: str, label: str, estimator: Estimator, n: int, d: int) -> list[str]:
    prepared = make_policy(policy)
    prepared.prepare(history(n), estimator)
    times = [milliseconds(decide(prepared, estimator, n, b), repeats=7) for b in BATCHES]
    return [policy, label, str(n), str(d), *(f"{t:.2f}" for t in times)]


def main() -> None:
    """Print the table, and write it into the document."""
    head = ["policy", "estimator", "N", "D", *(f"batch of {b}, ms" for b in BATCHES)]
    lines = [head, ["---"] * len(head), *given_rows(), *whole_rows()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    print(table)
    update_section(
        "Decision time of policies",
        "python -m benchmarks.decision_time",
        table,
        data="synthetic: the time depends on the sizes only",
        seeds="0",
        notes="Median CPU time on one thread. Bounds: expected-variance-reduction 2 ms at N = 1,075 and 25 ms"
        " at N = 12,032; information-gain 1 s and ppo 10 ms at N = 1,075.",
    )


if __name__ == "__main__":
    main()
