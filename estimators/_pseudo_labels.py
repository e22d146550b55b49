"""Pseudo-labels: sure predictions for prompts without history, as training data (Li et al., section 2.4).

They are made by a fitted estimator for the methods of its history, where its predictive variance is under a
threshold; they never replace a score, and whoever stores them stores them apart from scores, with the version
that made them. Whether learning from them helps is asked of real answers, by fits that have not seen them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from assay.matrix import ScoreMatrix
from estimators._cold_start import ColdStartEstimator, cold_prompts, full_rows
from estimators._draws import binary_prompts

__all__ = ["LabelCheck", "PseudoLabels", "check_labels", "make_pseudo_labels"]

#: With fewer real answers than this nothing is known about whether labels help.
LEAST_ANSWERS = 30

#: The surest of more are taken.
MOST_LABELS = 200_000


@dataclass(frozen=True)
class PseudoLabels:
    """Labels of L (method, prompt) cells that have no score.

    Attributes:
        methods: (L,) method ids.
        prompts: (L,) prompt ids.
        values: (L,) predicted scores; 0 or 1 where scores are binary.
        uncertainty: (L,) predictive variance of each.
    """

    methods: tuple[str, ...]
    prompts: tuple[str, ...]
    values: NDArray[np.float32]
    uncertainty: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.methods)

    def added_to(self, history: ScoreMatrix) -> ScoreMatrix:
        """The history with the labels where it has no score; where it has one, the label is dropped."""
        row = {name: i for i, name in enumerate(history.method_ids)}
        column = {name: j for j, name in enumerate(history.prompt_ids)}
        filled = history.values.copy()
        for method, prompt, value in zip(self.methods, self.prompts, self.values, strict=True):
            i, j = row.get(method), column.get(prompt)
            if i is not None and j is not None and np.isnan(filled[i, j]):
                filled[i, j] = value
        return replace(history, values=filled)


def make_pseudo_labels(estimator: ColdStartEstimator, history: ScoreMatrix, threshold: float) -> PseudoLabels:
    """Labels for the full rows of a history on its cold prompts, where the estimator is sure enough.

    Args:
        estimator: Fitted to the history.
        history: (M, N) scores.
        threshold: Largest predictive variance; 0.09 is a probability of .9 either way for a binary score.
    """
    rows = full_rows(history)
    cold = cold_prompts(history.rows(rows))
    prediction = estimator.predict(history.values[rows])
    sure = cold & np.isnan(history.values[rows]) & (prediction.variance <= threshold)
    if sure.sum() > MOST_LABELS:
        sure &= prediction.variance < np.partition(prediction.variance[sure], MOST_LABELS)[MOST_LABELS]
    i, j = np.nonzero(sure)
    values = np.clip(prediction.mean[sure], 0.0, 1.0)
    return PseudoLabels(
        tuple(history.method_ids[int(r)] for r in rows[i]),
        tuple(history.prompt_ids[int(c)] for c in j),
        np.where(binary_prompts(history)[j], values.round(), values).astype(np.float32),
        prediction.variance[sure].astype(np.float32),
    )


@dataclass(frozen=True)
class LabelCheck:
    """Whether learning from pseudo-labels predicts real answers of other methods better.

    Attributes:
        kept: Whether it does, beyond chance.
        answers: Real answers that it was asked on.
        loss_without: Mean squared error of the fit without labels there; NaN where there were too few.
        loss_with: The same of the fit with labels.
    """

    kept: bool
    answers: int
    loss_without: float
    loss_with: float

    @property
    def reason(self) -> str:
        """In a sentence."""
        if np.isnan(self.loss_with):
            return f"not used: {self.answers} answers on these prompts are too few to check them on"
        said = f"squared error {self.loss_with:.4f} with them, {self.loss_without:.4f} without"
        return f"{'used' if self.kept else 'not used'}: {said}, on {self.answers} answers"


def check_labels(estimator: ColdStartEstimator, history: ScoreMatrix, labels: PseudoLabels) -> LabelCheck:
    """Predict the real answers on cold prompts by fits without their rows, once with labels and once without.

    Kept where the mean improvement exceeds one standard error of the answers' differences.

    Args:
        estimator: Just fitted to the history.
        history: (M, N) scores.
        labels: Made by the estimator.
    """
    asked = history.observed & estimator.cold_
    if asked.sum() < LEAST_ANSWERS or not len(labels):
        return LabelCheck(False, int(asked.sum()), float("nan"), float("nan"))
    truth = history.values.astype(np.float64)
    fits = (estimator.cross_fitted(history), estimator.cross_fitted(history, labels.added_to(history)))
    asked &= ~np.isnan(fits[0])  # a single row cannot be predicted by others
    plain, other = (((mean - truth)[asked]) ** 2 for mean in fits)
    gain = plain - other
    kept = len(gain) >= LEAST_ANSWERS and bool(gain.mean() > gain.std() / np.sqrt(len(gain)))
    return LabelCheck(kept, len(gain), _mean(plain), _mean(other))


def _mean(squares: NDArray[np.float64]) -> float:
    return float(squares.mean()) if len(squares) else float("nan")
