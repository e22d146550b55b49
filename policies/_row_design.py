"""Designs under a linear-Gaussian model of a row: what each answer is worth, greedy choice, fantasies.

A row's scores are linear-Gaussian around its posterior: y_j = mean_j + l_j . u + e_j, u ~ N(0, S),
e_j ~ N(0, noise_j). The benchmark score's unknown part is s = sum over unobserved k of w_k y_k. Asking j
lowers Var(s) by Cov(s, y_j)^2 / Var(y_j), where

    Cov(s, y_j) = (sum_k w_k l_k)' S l_j + w_j noise_j      Var(y_j) = l_j' S l_j + noise_j.

All j at once are two matrix products, L S and (L S) g. A prompt that was asked for and is not answered yet
counts as answered at its mean: S shrinks by a rank-one term, whatever the answer will be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.matrix import BoolArray
from estimators import Linearization
from policies._base import PolicyState, Selection

__all__ = ["LEAST_NOISE", "RowDesign", "choose_greedily", "row_designs"]

Floats = NDArray[np.float64]
TIE = 1.0 - 1e-9
LEAST_NOISE = 1e-9


@dataclass
class RowDesign:
    """What is still unknown of one row, updated as prompts are chosen.

    Attributes:
        loadings: (N, D) derivative of each score by the latent.
        covariance: (D, D) covariance of the latent.
        noise: (N,) variance of each score given the latent.
        weights: (N,) weight of each prompt, 0 where its score is known or will be.
    """

    loadings: Floats
    covariance: Floats
    noise: Floats
    weights: Floats

    def __post_init__(self) -> None:
        self.weighted = self.weights @ self.loadings  # (D,) sum of w_k l_k over the unobserved prompts
        self.shifted = self.loadings @ self.covariance  # (N, D) L S
        self.variance = np.einsum("nd,nd->n", self.shifted, self.loadings) + self.noise  # (N,) Var(y_j)

    def score_gains(self) -> Floats:
        """(N,) reduction of the benchmark score's variance by each prompt's answer."""
        covered = self.shifted @ self.weighted + self.weights * self.noise
        gains: Floats = covered**2 / self.variance
        return gains

    def latent_gains(self) -> Floats:
        """(N,) reduction of the latent's entropy, in nats, by each prompt's answer."""
        gains: Floats = 0.5 * np.log(np.maximum(self.variance / self.noise, 1.0))
        return gains

    def take(self, j: int) -> None:
        """Count prompt j as answered at its mean."""
        direction = self.shifted[j].copy()  # S l_j
        variance = self.variance[j]
        along = self.loadings @ direction  # l_k' S l_j of every k
        self.shifted -= np.outer(along, direction / variance)
        self.covariance = self.covariance - np.outer(direction, direction / variance)
        self.variance = np.maximum(self.variance - along**2 / variance, self.noise)
        self.weighted = self.weighted - self.weights[j] * self.loadings[j]
        self.weights[j] = 0.0

    def take_all(self, chosen: BoolArray) -> None:
        """Count all the chosen prompts (N,) as answered at their means, in one step."""
        if not chosen.any():
            return
        root = self.loadings[chosen] / np.sqrt(self.noise[chosen])[:, None]
        product = root @ self.covariance
        gram = np.eye(len(root)) + product @ root.T
        self.covariance = self.covariance - product.T @ np.linalg.solve(gram, product)
        self.weights = np.where(chosen, 0.0, self.weights)
        self.__post_init__()


def row_designs(lines: Linearization, state: PolicyState) -> list[RowDesign]:
    """What is unknown of each of the state's rows, pending cells counted as answered."""
    designs = []
    for i, scores in enumerate(state.scores):
        design = RowDesign(
            loadings=lines.loadings if lines.loadings.ndim == 2 else lines.loadings[i],
            covariance=lines.covariance[i],
            noise=np.maximum(lines.noise[i], LEAST_NOISE),
            weights=np.where(np.isnan(scores), state.weights, 0.0),
        )
        design.take_all(state.pending[i] & np.isnan(scores))
        designs.append(design)
    return designs


def choose_greedily(
    state: PolicyState,
    n: int,
    gains: Callable[[int], Floats],
    take: Callable[[int, int], None],
    *,
    among: int | None = None,
) -> Selection:
    """Up to n cells, each the one of largest gain per cost given those before it.

    Where the gains were learned from few methods, each is the best of some candidates that are drawn, as the
    largest of all gains would be luck (`Estimator.candidates_per_choice`).

    Args:
        state: Where to choose.
        n: Most cells to choose.
        gains: Row -> (N,) gain of each of its prompts, as things stand.
        take: Called with row and prompt of each chosen cell before the next is chosen.
        among: Candidates that each is chosen among, 0 = all; default what the state's estimator declares.
    """
    if among is None:
        among = 0 if state.estimator is None else state.estimator.candidates_per_choice()
    free = state.candidates
    value = np.array([np.where(free[i], gains(i) / state.cost[i], -1.0) for i in range(len(free))])
    rows, columns, won, chances = [], [], [], []
    left_in_all = int(free.sum())
    for left in range(min(n, left_in_all), 0, -1):
        flat = value.reshape(-1)
        best = _first_best(_drawn(flat, among, state.rng))
        i, j = divmod(best, value.shape[1])
        chances.append(_chance(flat, best, left_in_all, among))
        rows.append(i)
        columns.append(j)
        won.append(value[i, j] * state.cost[i, j])
        free[i, j] = False
        left_in_all -= 1
        if left > 1:
            take(i, j)
            value[i] = np.where(free[i], gains(i) / state.cost[i], -1.0)
    return Selection.of(rows, columns, probability=chances, gain=won)


def _drawn(value: Floats, among: int, rng: np.random.Generator) -> Floats:
    """The values (-1 = no candidate) with all but `among` random candidates at -1; all where 0."""
    free = np.flatnonzero(value >= 0.0)
    if not 0 < among < len(free):
        return value
    tried = rng.choice(free, among, replace=False)
    left = np.full_like(value, -1.0)
    left[tried] = value[tried]
    return left


def _chance(value: Floats, chosen: int, free: int, among: int) -> float:
    """Probability that the cell is drawn and none of the cells better than it; NaN where nothing is drawn."""
    if not 0 < among < free:
        return 1.0 if among else float("nan")
    ties = (value >= value[chosen] * TIE) & (value * TIE <= value[chosen])
    better = int((value * TIE > value[chosen]).sum()) + int(ties[:chosen].sum())
    others = np.arange(better)
    return float(among / free * np.prod((free - among - others) / (free - 1.0 - others)))


def _first_best(value: Floats) -> int:
    """Index of the largest value; of (almost) equal ones the first, so that rounding does not decide."""
    return int(np.argmax(value >= value.max() * TIE))
