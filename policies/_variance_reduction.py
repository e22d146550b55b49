"""Expected reduction of the benchmark score's variance by each candidate: the formula behind two policies.

A row's scores are linear-Gaussian around its posterior: y_j = mean_j + l_j . u + e_j, u ~ N(0, S),
e_j ~ N(0, noise_j). The benchmark score's unknown part is s = sum over unobserved k of w_k y_k. Asking j
lowers Var(s) by Cov(s, y_j)^2 / Var(y_j), where

    Cov(s, y_j) = (sum_k w_k l_k)' S l_j + w_j noise_j      Var(y_j) = l_j' S l_j + noise_j.

All j at once are two matrix products, L S and (L S) g. A prompt that was asked for and is not answered yet
counts as answered at its mean: S shrinks by a rank-one term, whatever the answer will be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.matrix import BoolArray

__all__ = ["RowDesign", "first_best"]

Floats = NDArray[np.float64]
TIE = 1.0 - 1e-9


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

    def gains(self) -> Floats:
        """(N,) reduction of the benchmark score's variance by each prompt's answer."""
        covered = self.shifted @ self.weighted + self.weights * self.noise
        gains: Floats = covered**2 / self.variance
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


def first_best(value: Floats) -> int:
    """Index of the largest value; of (almost) equal ones the first, so that rounding does not decide."""
    return int(np.argmax(value >= value.max() * TIE))
