"""Training a learned policy and judging it on methods that neither it nor its estimator has learned from.

The one module of the workers that sees policies: a policy that is trained is fitted on the train queue like
an estimator, and everything else about its versions is shared with estimators (`workers.training`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.matrix import ScoreMatrix
from estimators import Estimator
from policies import Policy, PolicyState, SupportsTraining, make_policy
from storage.tables import VersionState

__all__ = ["policy_errors", "train_and_judge"]

#: Shares of the prompts that a policy acquires of each held-out method when it is judged.
ACQUIRED = (0.02, 0.05, 0.1)
BATCHES = 20  # decisions on the way to the largest share

Verdict = tuple[VersionState, str, dict[str, Any]]


def train_and_judge(
    name: str,
    params: dict[str, Any],
    estimator: Estimator,
    learned: ScoreMatrix,
    unseen: ScoreMatrix,
    *,
    parent: Path | None,
    checkpoint: Path,
) -> tuple[SupportsTraining, Verdict]:
    """Train a policy and compare it with the champion, and with drawing prompts at random.

    Args:
        name: Registered name of a policy that can be trained.
        params: Its parameters.
        estimator: The fitted estimator that it is for.
        learned: Rows that the estimator has learned from.
        unseen: Rows that it has not.
        parent: Artifact of the champion to start from and to beat, or None.
        checkpoint: Folder that keeps what is done, so that an interrupted training goes on.
    """
    policy = make_policy(name, **params)
    if not isinstance(policy, SupportsTraining):
        raise AssayError(f"policy '{name}' is not learned", "only learned policies are trained, such as ppo")
    champion: Any = None if parent is None else make_policy(name, **params)
    if champion is not None:
        champion.restore(parent)
    checkpoint.mkdir(parents=True, exist_ok=True)
    policy.train(learned, estimator, warm_start=champion, checkpoint=checkpoint)
    return policy, judge(policy, champion, estimator, learned, unseen)


def judge(
    policy: Policy, champion: Policy | None, estimator: Estimator, learned: ScoreMatrix, unseen: ScoreMatrix
) -> Verdict:
    """Whether a policy becomes champion, why, and the figures."""
    if unseen.n_methods == 0:
        reason = "promoted without validation: too few methods to hold any out"
        return VersionState.CHAMPION, reason, {"rows": 0}
    own = policy_errors(policy, estimator, learned, unseen)
    drawn = policy_errors(make_policy("uniform"), estimator, learned, unseen)
    facts: dict[str, Any] = {
        "rows": unseen.n_methods,
        "loss": float(np.mean(own)),
        "uniform_loss": float(np.mean(drawn)),
        "errors": own.tolist(),
    }
    said = f"held-out error {facts['loss']:.5f}, drawn uniformly {facts['uniform_loss']:.5f}"
    if champion is None:
        return VersionState.CHAMPION, f"the first version: {said}", facts
    other = policy_errors(champion, estimator, learned, unseen)
    facts["champion_loss"] = float(np.mean(other))
    better = facts["loss"] < facts["champion_loss"]
    state = VersionState.CHAMPION if better else VersionState.REJECTED
    return state, f"{said}, the champion's {facts['champion_loss']:.5f}", facts


def policy_errors(
    policy: Policy, estimator: Estimator, learned: ScoreMatrix, unseen: ScoreMatrix
) -> NDArray[np.float64]:
    """Mean absolute error of the benchmark score after each share of `ACQUIRED`.

    Missing scores count as they are predicted with all that is known. Every policy that is compared gets the
    same draws.
    """
    policy.prepare(learned, estimator)
    truth = unseen.values.astype(np.float64)
    weights = unseen.weights.astype(np.float64)
    counts = [max(1, round(share * unseen.n_prompts)) for share in ACQUIRED]
    step = max(1, counts[-1] // BATCHES)
    observed, seen, errors = np.full_like(truth, np.nan), 0, []
    for count in counts:
        while seen < count:
            n = min(step, count - seen)
            states = [_state(truth, observed, i, seen, unseen, estimator) for i in range(len(truth))]
            for i, chosen in enumerate(policy.select_each(states, n)):
                observed[i, chosen.columns] = truth[i, chosen.columns]
            seen += n
        whole = np.where(np.isnan(truth), estimator.predict(observed).mean, truth) @ weights
        errors.append(np.abs(estimator.benchmark_score(observed).mean - whole).mean())
    return np.array(errors)


def _state(
    truth: NDArray[np.float64],
    observed: NDArray[np.float64],
    i: int,
    seen: int,
    unseen: ScoreMatrix,
    estimator: Estimator,
) -> PolicyState:
    part = slice(i, i + 1)
    return PolicyState(
        scores=observed[part].copy(),
        pending=np.zeros_like(observed[part], dtype=bool),
        available=~np.isnan(truth[part]),
        cost=np.ones_like(observed[part]),
        weights=unseen.weights.astype(np.float64),
        dataset_index=unseen.dataset_index,
        estimator=estimator,
        rng=np.random.default_rng([i, seen]),
    )
