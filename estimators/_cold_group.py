"""Prompts that hardly any method has answered: a logistic model of a group of them, sharing strength.

Method m answers prompt j of a group right with probability sigmoid(eta_m + difficulty_j), where

    eta_m = coefficients . x_m + own_m,   own_m ~ N(0, between),   difficulty_j ~ N(0, within).

x_m are the logits of what the method is expected to score on the prompts that have a history. The prior of
the coefficients, and both variances, come from the datasets that have one (`transfer_prior`): how much one
of them says about another. With no answer at all the prior speaks; the answers of all methods are pooled as
they come, so that ten methods with twenty answers each say how hard the group is and how it goes with the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

__all__ = ["ColdGroup", "GroupPosterior", "TransferPrior", "fit_group"]

Array = NDArray[Any]
ROUNDS = 8  # of variances given the answers
PRIOR_COUNT = 3.0  # observations that the prior variances count as
NEWTON_STEPS = 12
PROBIT = np.pi / 8.0


@dataclass(frozen=True)
class TransferPrior:
    """What is believed of a group before any of its prompts was answered.

    Attributes:
        mean: (F,) prior mean of the coefficients.
        variance: (F,) prior variance of the coefficients.
        between: Variance over methods of what the features do not say, on the logit scale.
        within: Variance of the prompts' difficulties, on the logit scale.
    """

    mean: Array
    variance: Array
    between: float
    within: float


@dataclass(frozen=True)
class GroupPosterior:
    """What is known of B methods on the n prompts of a group.

    Attributes:
        level: (B, n) expected scores.
        slope: (B, n) derivative of the expected score by eta.
        variance: (B,) posterior variance of eta.
        carried: (B,) share of the prior mean that the method's own answers have left in eta.
    """

    level: Array
    slope: Array
    variance: Array
    carried: Array


@dataclass(frozen=True)
class ColdGroup:
    """A fitted group of n prompts with F features per method.

    Attributes:
        coefficients: (F,) posterior mean.
        covariance: (F, F) posterior covariance.
        between: Variance of what the features do not say of a method.
        difficulty: (n,) posterior mean of the prompts' difficulties.
        doubt: (n,) their posterior variance.
    """

    coefficients: Array
    covariance: Array
    between: float
    difficulty: Array
    doubt: Array

    def posterior(self, features: Array, observed: Array) -> GroupPosterior:
        """What the answers say.

        Args:
            features: (B, F) features of the methods.
            observed: (B, n) their scores on the group's prompts; NaN = not acquired.
        """
        seen = ~np.isnan(observed)
        scores = np.where(seen, observed, 0.0)
        prior = features @ self.coefficients
        spread = np.einsum("bf,fg,bg->b", features, self.covariance, features) + self.between
        shrink = 1.0 / np.sqrt(1.0 + PROBIT * self.doubt)
        eta = prior.copy()
        for _ in range(NEWTON_STEPS):
            p = expit(shrink * (eta[:, None] + self.difficulty))
            gradient = (seen * shrink * (scores - p)).sum(axis=1) - (eta - prior) / spread
            curvature = (seen * shrink**2 * p * (1.0 - p)).sum(axis=1) + 1.0 / spread
            eta = eta + np.clip(gradient / curvature, -2.0, 2.0)
        variance = 1.0 / curvature
        total = 1.0 / np.sqrt(1.0 + PROBIT * (variance[:, None] + self.doubt))
        level = expit(total * (eta[:, None] + self.difficulty))
        return GroupPosterior(level, total * level * (1.0 - level), variance, variance / spread)


def fit_group(features: Array, values: Array, prior: TransferPrior) -> ColdGroup:
    """Pool the answers of M methods on a group.

    Args:
        features: (M, F) features of the methods.
        values: (M, n) their scores; NaN = not acquired. M may be 0.
        prior: What is believed beforehand.
    """
    n, f = values.shape[1], len(prior.mean)
    rows, columns = np.nonzero(~np.isnan(values))
    between, within = prior.between, prior.within
    if len(rows) == 0:
        return ColdGroup(prior.mean, np.diag(prior.variance), between, np.zeros(n), np.full(n, within))
    used, rows = np.unique(rows, return_inverse=True)
    cells = _Cells(features[used], rows, columns, values[used][rows, columns], n)
    start = np.concatenate([prior.mean, np.zeros(len(used) + n)])
    for _ in range(ROUNDS):
        start = _most_probable(cells, prior, between, within, start)
        own, difficulty = start[f : f + len(used)], start[f + len(used) :]
        noise = cells.information(start)
        own_doubt = 1.0 / (np.bincount(rows, noise, len(used)) + 1.0 / between)
        doubt = 1.0 / (np.bincount(columns, noise, n) + 1.0 / within)
        between = _pooled(own**2 + own_doubt, prior.between)
        within = _pooled(difficulty**2 + doubt, prior.within)
    return ColdGroup(start[:f], _covariance(cells, noise, prior, between), between, difficulty, doubt)


@dataclass(frozen=True)
class _Cells:
    """The answers, one by one: row, column and score of each."""

    features: Array
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    scores: Array
    n: int

    def logits(self, parameters: Array) -> Array:
        f, m = self.features.shape[1], len(self.features)
        eta = self.features @ parameters[:f] + parameters[f : f + m]
        return np.asarray(eta[self.rows] + parameters[f + m :][self.columns])

    def information(self, parameters: Array) -> Array:
        p = expit(self.logits(parameters))
        return np.asarray(p * (1.0 - p))


def _most_probable(cells: _Cells, prior: TransferPrior, between: float, within: float, start: Array) -> Array:
    """Coefficients, own parts and difficulties, in that order, of largest posterior density."""
    m = len(cells.features)
    centre = np.concatenate([prior.mean, np.zeros(m + cells.n)])
    precision = np.concatenate(
        [1.0 / prior.variance, np.full(m, 1.0 / between), np.full(cells.n, 1.0 / within)]
    )

    def loss(parameters: Array) -> tuple[float, Array]:
        logits = cells.logits(parameters)
        off = parameters - centre
        value = np.logaddexp(0.0, logits).sum() - cells.scores @ logits + 0.5 * precision @ off**2
        error = expit(logits) - cells.scores
        by_row = np.bincount(cells.rows, error, m)
        gradient = np.concatenate(
            [cells.features.T @ by_row, by_row, np.bincount(cells.columns, error, cells.n)]
        )
        return float(value), gradient + precision * off

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return np.asarray(found.x)


def _covariance(cells: _Cells, noise: Array, prior: TransferPrior, between: float) -> Array:
    """(F, F) posterior covariance of the coefficients, the methods' own parts integrated out."""
    by_row = np.bincount(cells.rows, noise, len(cells.features))
    weight = by_row / (1.0 + between * by_row)
    precision = np.diag(1.0 / prior.variance) + (cells.features * weight[:, None]).T @ cells.features
    return np.asarray(np.linalg.inv(precision))


def _pooled(squares: Array, prior: float) -> float:
    """A variance from expected squares, the prior value counting as a few of them."""
    return float((squares.sum() + PRIOR_COUNT * prior) / (len(squares) + PRIOR_COUNT))
