"""Judging a fitted estimator on history rows that it has not learned from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from estimators import ColdStartEstimator, Estimator

__all__ = ["ColdComparison", "Validation", "compare_on_cold", "hold_out", "validate"]

#: With fewer rows than this nothing is held out: every row is needed to learn from.
LEAST_ROWS = 20

#: With fewer answers on new prompts than this they decide nothing.
LEAST_COLD_ANSWERS = 30

#: Shares of the prompts that the held-out rows are shown.
SHOWN = (0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Validation:
    """How well held-out rows are predicted from a few of their scores.

    Attributes:
        rows: Number of held-out rows.
        loss: Mean squared error of the scores that were not shown, by dataset, weighted as the datasets are,
            so that a few answers on new prompts are not drowned by many on old ones.
        score_error: Mean absolute error of the benchmark score.
    """

    rows: int
    loss: float
    score_error: float

    def to_json(self) -> dict[str, Any]:
        """JSON-able facts."""
        return vars(self).copy()


def hold_out(methods: Sequence[str], share: float) -> NDArray[np.bool_]:
    """(M,) True for the rows that no version of an estimator ever learns from.

    Chosen by a hash of the name, so that champion and challenger, fitted months apart, hold out the same
    methods and can be compared on them.
    """
    if len(methods) < LEAST_ROWS or share <= 0:
        return np.zeros(len(methods), dtype=bool)
    place = np.array([_place(name) for name in methods])
    held = place < share
    if held.sum() < 2:  # a small history may have none below the share by chance
        held = place <= np.sort(place)[1]
    return held


def validate(estimator: Estimator, held_out: ScoreMatrix, seed: int) -> Validation:
    """Show a few scores of each held-out row, predict the rest, and compare.

    Args:
        estimator: Fitted without these rows.
        held_out: (H, N) rows; missing scores are left out of the comparison.
        seed: Which scores are shown; the same for every estimator that is compared.
    """
    rng = np.random.default_rng(seed)
    truth = held_out.values.astype(np.float64)
    order = np.where(np.isnan(truth), 2.0, rng.random(truth.shape)).argsort(axis=1).argsort(axis=1)
    losses, errors = [], []
    for share in SHOWN:
        shown = np.where(order < max(1, round(share * held_out.n_prompts)), truth, np.nan)
        prediction = estimator.predict(shown)
        hidden = np.isnan(shown) & ~np.isnan(truth)
        losses.append(_mean_by_dataset(np.square(prediction.mean - truth), hidden, held_out))
        whole = np.where(np.isnan(truth), prediction.mean, truth) @ held_out.weights
        errors.append(np.abs(estimator.benchmark_score(shown).mean - whole).mean())
    return Validation(held_out.n_methods, float(np.mean(losses)), float(np.mean(errors)))


@dataclass(frozen=True)
class ColdComparison:
    """How well two versions predict the answers on prompts without history.

    Attributes:
        weight: Weight of those prompts in the benchmark score.
        loss: Mean squared error of the challenger, each answer predicted by a fit without its row's answers.
        champion_loss: The champion's, which may have learned from some of these answers already.
    """

    weight: float
    loss: float
    champion_loss: float


def compare_on_cold(
    challenger: Estimator, champion: Estimator, learned: ScoreMatrix
) -> ColdComparison | None:
    """Ask both about the answers that were pooled; None where there are too few, or other prompts are cold.

    The methods that are held out of every fit are few, and may have answered none of the new prompts.

    Args:
        challenger: Fitted to `learned`.
        champion: Fitted earlier.
        learned: (M, N) the challenger's history.
    """
    if not isinstance(challenger, ColdStartEstimator) or not isinstance(champion, ColdStartEstimator):
        return None
    cold = challenger.cold_
    if not cold.any() or not np.array_equal(cold, champion.cold_):
        return None
    own = challenger.cross_fitted(learned)
    asked = ~np.isnan(own)
    if asked.sum() < LEAST_COLD_ANSWERS:
        return None
    truth = learned.values.astype(np.float64)
    other = champion.predict(np.where(cold, np.nan, truth)).mean
    losses = [_mean_by_dataset(np.square(mean - truth), asked, learned) for mean in (own, other)]
    return ColdComparison(float(learned.weights[cold].sum()), losses[0], losses[1])


def _mean_by_dataset(squares: NDArray[np.float64], hidden: NDArray[np.bool_], matrix: ScoreMatrix) -> float:
    index, count = matrix.dataset_index, len(matrix.datasets)
    cells = np.bincount(index, hidden.sum(axis=0), count)
    total = np.bincount(index, np.where(hidden, squares, 0.0).sum(axis=0), count)
    weight = np.bincount(index, matrix.weights, count) * (cells > 0)
    return float((weight * total / np.maximum(cells, 1)).sum() / weight.sum())


def _place(name: str) -> float:
    digest = hashlib.sha256(f"held-out:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
