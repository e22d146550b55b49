"""What the learned policy sees of partly observed rows, and how that changes as prompts are taken.

Shapes: B rows, N prompts, D latent dimensions of the estimator, F length of a prompt's representation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.matrix import FloatArray, ScoreMatrix
from estimators import Estimator, Linearization, SupportsLinearization, SupportsPromptFeatures

__all__ = ["AUXILIARY", "Lookahead", "Representation", "View", "look", "score_representation"]

AUXILIARY = 4  # predicted mean, predicted deviation, log weight, log gain
LEAST_NOISE = 1e-6
LEAST_GAIN = -8.0  # log gains below the best by more than that are told apart no further
SPECTRAL_SIZE = 16

Floats = NDArray[np.float64]


class View(NamedTuple):
    """B rows as the network reads them.

    Attributes:
        scores: (B, N) known scores, 0 where unknown.
        known: (B, N) True where the score is known.
        free: (B, N) True where the prompt may be chosen.
        auxiliary: (B, N, AUXILIARY - 1) what the estimator says of each prompt, the gain left out.
        gain: (B, N) log of the expected gain per cost, 0 for the best candidate.
        progress: (B, 2) log number of known scores, log deviation of the benchmark score.
        truth: (B,) the potential of the state: only training knows it, only the critic looks; else 0.
    """

    scores: Tensor
    known: Tensor
    free: Tensor
    auxiliary: Tensor
    gain: Tensor
    progress: Tensor
    truth: Tensor

    def rows(self, index: Tensor) -> View:
        """Some of the rows."""
        return View(*(part[index] for part in self))

    @classmethod
    def join(cls, views: Sequence[View]) -> View:
        """The rows of several views, one after the other."""
        return cls(*(torch.cat(parts) for parts in zip(*views, strict=True)))


@dataclass(frozen=True)
class Representation:
    """Frozen prompt representations of an estimator: the learned policy's action embeddings.

    A policy outlives the estimator version that it was trained with. Prompts that it knows keep the vectors
    they had; those added later get theirs from the present estimator, carried over into the frozen space by
    a linear map that is learned on the prompts known to both.

    Attributes:
        prompt_ids: N ids.
        vectors: (N, F) standardised representations.
        shift, scale: (F,) the standardisation.
    """

    prompt_ids: tuple[str, ...]
    vectors: Floats
    shift: Floats
    scale: Floats

    @classmethod
    def freeze(cls, history: ScoreMatrix, estimator: Estimator) -> Representation:
        """Take the estimator's representation, or the history's principal axes where it has none."""
        raw = _raw_features(history, estimator)
        shift, spread = raw.mean(axis=0), raw.std(axis=0)
        scale = np.where(spread > 1e-6, spread, 1.0)
        return cls(history.prompt_ids, (raw - shift) / scale, shift, scale)

    def extended(self, history: ScoreMatrix, estimator: Estimator) -> Representation:
        """The representations of another history's prompts, in this one's space."""
        if history.prompt_ids == self.prompt_ids:
            return self
        place = {name: i for i, name in enumerate(self.prompt_ids)}
        known = np.array([place.get(name, -1) for name in history.prompt_ids])
        raw = _raw_features(history, estimator)
        standard = (raw - raw.mean(axis=0)) / np.maximum(raw.std(axis=0), 1e-6)
        inputs = np.column_stack([standard, np.ones(len(standard))])
        vectors = np.zeros((len(known), self.vectors.shape[1]))
        both = known >= 0
        vectors[both] = self.vectors[known[both]]
        if both.any() and not both.all():
            gram = inputs[both].T @ inputs[both] + np.eye(inputs.shape[1])
            carried = np.linalg.solve(gram, inputs[both].T @ vectors[both])
            vectors[~both] = inputs[~both] @ carried
        return Representation(history.prompt_ids, vectors, self.shift, self.scale)


def _raw_features(history: ScoreMatrix, estimator: Estimator) -> Floats:
    if isinstance(estimator, SupportsPromptFeatures):
        return estimator.prompt_features()
    return score_representation(history)


def score_representation(history: ScoreMatrix) -> Floats:
    """(N, 16) principal axes of the history's columns, for estimators that represent no prompts."""
    values = history.values.astype(np.float64)
    mean = np.nan_to_num(np.nanmean(values, axis=1, keepdims=True)) if values.size else values
    columns = np.where(np.isnan(values), mean, values).T
    centred = columns - columns.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    axes = left[:, :SPECTRAL_SIZE] * singular[:SPECTRAL_SIZE]
    signs = np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    features: Floats = np.zeros((len(columns), SPECTRAL_SIZE))
    features[:, : axes.shape[1]] = axes * signs
    return features


class Lookahead:
    """How much each candidate's answer would lower the variance of the benchmark score, for B rows at once.

    The linear-Gaussian algebra of `_row_design`, on tensors. An estimator that cannot be linearised counts
    as one without a latent (D = 0): its prompts are independent given what is known.

    Args:
        lines: The rows' linearisation.
        weights: (N,) prompt weights.
        known: (B, N) True where the score is known or was asked for before.
    """

    def __init__(self, lines: Linearization, weights: Tensor, known: Tensor) -> None:
        rows, prompts = known.shape
        loadings = _tensor(lines.loadings)
        self.loadings = loadings.expand(rows, prompts, loadings.shape[-1])  # (B, N, D)
        self.noise = _tensor(lines.noise).clamp_min(LEAST_NOISE)
        self.weights = torch.where(known, 0.0, weights)  # (B, N)
        self.shifted = self.loadings @ _tensor(lines.covariance)  # L S
        self.variance = (self.shifted * self.loadings).sum(-1) + self.noise
        self.weighted = (self.weights[:, None] @ self.loadings)[:, 0]  # (B, D)

    def gains(self) -> Tensor:
        """(B, N) reduction of the benchmark score's variance by each prompt's answer."""
        covered = (self.shifted @ self.weighted[:, :, None])[:, :, 0] + self.weights * self.noise
        return covered.square() / self.variance

    def score_variance(self) -> Tensor:
        """(B,) variance of the benchmark score."""
        latent = ((self.weights[:, None] @ self.shifted)[:, 0] * self.weighted).sum(-1)
        return latent + (self.weights.square() * self.noise).sum(-1)

    def take(self, columns: Tensor) -> None:
        """Count one prompt of each row (B,) as answered at its mean."""
        rows = torch.arange(len(columns))
        direction, variance = self.shifted[rows, columns], self.variance[rows, columns]  # (B, D), (B,)
        along = (self.loadings @ direction[:, :, None])[:, :, 0]  # (B, N)
        share = direction / variance[:, None]
        self.shifted = self.shifted - along[:, :, None] * share[:, None, :]
        self.variance = torch.maximum(self.variance - along.square() / variance[:, None], self.noise)
        taken = self.weights[rows, columns]
        self.weighted = self.weighted - taken[:, None] * self.loadings[rows, columns]
        self.weights = self.weights.scatter(1, columns[:, None], 0.0)


def look(
    estimator: Estimator,
    observed: FloatArray,
    free: Tensor,
    weights: Floats,
    cost: Tensor | None = None,
    pending: Tensor | None = None,
) -> tuple[View, Lookahead, Floats]:
    """Ask the estimator once about B rows.

    Args:
        estimator: Fitted.
        observed: (B, N) scores, NaN = unknown.
        free: (B, N) True where a prompt may be chosen.
        weights: (N,) prompt weights, summing to 1.
        cost: (B, N) expected cost of each cell; default 1 each.
        pending: (B, N) True where an answer is on its way: it counts as answered at its mean.

    Returns:
        What the network reads, the look-ahead to take prompts with, and the predicted means (B, N).
    """
    lines = _linearize(estimator, observed)
    scores = _tensor(np.nan_to_num(observed))
    known = torch.from_numpy(~np.isnan(observed))
    ahead = Lookahead(lines, _tensor(weights), known)
    deviation = ahead.variance.sqrt()
    for columns in _one_by_one(pending):
        ahead.take(columns)
    weight = torch.log(_tensor(weights).clamp_min(1e-9) * len(weights))
    mean = _tensor(lines.mean)
    auxiliary = torch.stack([mean - 0.5, deviation, weight.expand(len(mean), -1)], dim=-1)
    variance = ahead.score_variance().clamp_min(1e-12)
    progress = torch.stack([torch.log1p(known.sum(1).float()), 0.5 * torch.log(variance)], dim=-1)
    view = View(
        scores, known, free, auxiliary, relative_gain(ahead, free, cost), progress, torch.zeros(len(mean))
    )
    return view, ahead, lines.mean


def relative_gain(ahead: Lookahead, free: Tensor, cost: Tensor | None) -> Tensor:
    """(B, N) log gain per cost relative to the best candidate's, in [LEAST_GAIN, 0]."""
    value = torch.log(ahead.gains().clamp_min(1e-20))
    if cost is not None:
        value = value - torch.log(cost)
    best = value.masked_fill(~free, -torch.inf).amax(1, keepdim=True)
    best = torch.where(torch.isfinite(best), best, 0.0)
    return (value - best).clamp(LEAST_GAIN, 0.0)


def _tensor(values: FloatArray) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))


def _linearize(estimator: Estimator, observed: FloatArray) -> Linearization:
    if isinstance(estimator, SupportsLinearization):
        return estimator.linearize(observed)
    prediction = estimator.predict(observed)
    rows, prompts = prediction.mean.shape
    nothing = np.zeros((rows, prompts, 0)), np.zeros((rows, 0, 0))
    return Linearization(prediction.mean, *nothing, prediction.variance)


def _one_by_one(pending: Tensor | None) -> list[Tensor]:
    """Columns (B,) to take in turn; only for single rows, as others have different numbers pending."""
    if pending is None:
        return []
    if len(pending) != 1:
        raise ValueError("pending cells are given for one row at a time")
    return [column.reshape(1) for column in pending[0].nonzero()[:, 0]]
