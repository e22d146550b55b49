"""How long policies take to choose: CPU milliseconds per decision, given the estimator's linearisation.

    python benchmarks/decision_time.py

Synthetic linearisations, since the time depends on the sizes only: N prompts, D latent dimensions, 100 known.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from agent.acquisition import build_state
from estimators import Estimator, Linearization
from policies import Policy, make_policy

SIZES = ((1075, 8), (1075, 16), (1075, 64), (12032, 8), (12032, 64))
BATCHES = (1, 10)
POLICIES = ("expected-variance-reduction", "information-gain")
REPEATS = 30


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


def decide(policy: Policy, estimator: Estimator, n: int, batch: int) -> Callable[[], object]:
    """One decision of a study that knows 100 scores."""
    scores = np.full((1, n), np.nan)
    scores[0, np.random.default_rng(1).permutation(n)[:100]] = 1.0
    state = build_state(
        scores,
        seed=0,
        methods=("m",),
        weights=np.full(n, 1.0 / n),
        dataset_index=np.zeros(n, dtype=np.intp),
        estimator=estimator,
    )
    return lambda: policy.select(state, batch)


def milliseconds(call: Callable[[], object]) -> float:
    """Median CPU time."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1000.0 * float(np.median(times))


def main() -> None:
    """Print the table."""
    print("| policy | N | D | " + " | ".join(f"batch of {b}, ms" for b in BATCHES) + " |")
    print("| --- | ---: | ---: |" + " ---: |" * len(BATCHES))
    for name in POLICIES:
        for n, d in SIZES:
            estimator: Estimator = Given(n, d)  # type: ignore[assignment]
            cells = [milliseconds(decide(make_policy(name), estimator, n, b)) for b in BATCHES]
            print(f"| {name} | {n} | {d} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
