"""Factors of the intervals of quantiles: rehearsed by the trainer, kept in the version's artifact.

Beside `workers.policy_training` the one module of the workers that sees policies: how far off a quantile is
depends on how the cells were chosen.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import Estimator, SupportsLinearization
from estimators.quantile_intervals import QuantileFactors
from policies import make_policy
from policies.rehearsal import learn_quantile_factors

__all__ = ["FACTORS_FILE", "load_factors", "rehearse_quantiles", "save_factors"]

FACTORS_FILE = "quantile-factors.json"
ROWS = (20, 60)
CELLS = (2.0, 4.0, 8.0, 16.0)  # per row
GROUPS = 40
BATCH = 50
#: Cells per row decide how much is known of a row's score, whatever the number of prompts.
MOST_PROMPTS = 400


def rehearse_quantiles(estimator: Estimator, learned: ScoreMatrix) -> dict[str, QuantileFactors]:
    """Factors by the policy that they are for; none where they cannot be learned.

    Rehearsed is the policy that a distribution study takes by itself. Estimators of single rows have other
    intervals; those that look at templates' features, or are dear to refit, keep their own.

    Args:
        estimator: The fitted version.
        learned: (M, N) the rows that it learned from.
    """
    if not estimator.joint or estimator.row_features or not estimator.affordable_to_refit():
        return {}
    policy = "quantile-variance" if isinstance(estimator, SupportsLinearization) else "balanced"
    history = learned
    if learned.n_prompts > MOST_PROMPTS:
        drawn = np.random.default_rng(0).choice(learned.n_prompts, MOST_PROMPTS, replace=False)
        history = learned.columns(np.sort(drawn))
        estimator = estimator.settled().fit(history)
    found = learn_quantile_factors(
        history,
        estimator,
        lambda seed: make_policy(policy, seed=seed),
        rows=ROWS,
        cells=[each for each in CELLS if each < history.n_prompts] or [1.0],
        batch=BATCH,
        groups=GROUPS,
    )
    return {} if found is None else {policy: found}


def save_factors(factors: dict[str, QuantileFactors], folder: Path) -> None:
    """Write them into an artifact's folder, where there are any."""
    if factors:
        content = {policy: known.to_json() for policy, known in factors.items()}
        (folder / FACTORS_FILE).write_text(json.dumps(content), encoding="utf-8")


def load_factors(folder: Path) -> dict[str, QuantileFactors]:
    """Read them back; empty where the version has none.

    Raises:
        BadInputError: The file is broken.
    """
    path = folder / FACTORS_FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {policy: QuantileFactors.from_json(known) for policy, known in content.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{path} cannot be read: {error}", "retrain the estimator") from None
