"""What new methods' latents are like: a kernel density over those of the history's methods.

Models come in families: many are fine-tuned from the same few, so that latents lie in clumps that a normal
distribution spreads over. A normal kernel around each history method (Parzen 1962), and a broad normal for
methods like none of them, keep the clumps. The posterior under such a mixture is a mixture again, in closed
form once the likelihood is taken as normal around its Laplace approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BROAD_SHARE", "LatentPrior"]

Array = NDArray[Any]
BROAD_SHARE = 0.1  # of the prior, for methods unlike all of the history's
NEGLIGIBLE = 1e-8  # share of a kernel in a posterior that is left out of its mean and covariance
BLOCK_ENTRIES = 4_000_000


@dataclass(frozen=True)
class LatentPrior:
    """(1 - BROAD_SHARE) mean_m N(centre_m, bandwidth^2 I) + BROAD_SHARE N(0, I).

    Attributes:
        centres: (M, D) latents of the history's methods, of mean 0 and covariance about I.
        bandwidth: Standard deviation of each kernel, below 1.
    """

    centres: Array
    bandwidth: float

    @cached_property
    def _squares(self) -> Array:
        """(M,) squared lengths of the centres."""
        return np.asarray((self.centres**2).sum(axis=1))

    def posterior(self, precision: Array, pull: Array) -> tuple[Array, Array]:
        """Mean (B, D) and covariance (B, D, D) of the mixtures that are the posteriors of B rows.

        Args:
            precision: (B, D, D) of each row's likelihood as a normal of the latent.
            pull: (B, D) the same normal's precision times its mean.
        """
        mean, covariance = np.empty_like(pull), np.empty_like(precision)
        size = max(1, BLOCK_ENTRIES // self.centres.size)
        for i in range(0, len(pull), size):
            block = slice(i, i + size)
            mean[block], covariance[block] = self._block(precision[block], pull[block])
        return mean, covariance

    def _block(self, precision: Array, pull: Array) -> tuple[Array, Array]:
        d, tight = pull.shape[1], 1.0 / self.bandwidth**2
        near = np.linalg.inv(tight * np.eye(d) + precision)  # covariance of each kernel's posterior
        broad = np.linalg.inv(np.eye(d) + precision)
        pulls = tight * self.centres + pull[:, None]  # (B, M, D)
        means = pulls @ near
        broad_mean = (broad @ pull[:, :, None])[:, :, 0]
        squares = np.einsum("bmd,bmd->bm", means, pulls) - tight * self._squares
        kernels = np.log((1.0 - BROAD_SHARE) / len(self.centres)) + _evidence(near, squares.T, d, tight).T
        rest = np.log(BROAD_SHARE) + _evidence(broad, (broad_mean * pull).sum(axis=1), d, 1.0)
        kernels, rest = _shares(kernels, rest)
        near_ones = np.flatnonzero(kernels.max(axis=0) > NEGLIGIBLE)
        kernels, means = kernels[:, near_ones], means[:, near_ones]
        mean = (kernels[:, None] @ means)[:, 0] + rest[:, None] * broad_mean
        means -= mean[:, None]
        off = broad_mean - mean
        between = (means * kernels[:, :, None]).transpose(0, 2, 1) @ means
        within = (1.0 - rest)[:, None, None] * near + rest[:, None, None] * broad
        return mean, within + between + rest[:, None, None] * off[:, :, None] * off[:, None, :]


def _evidence(covariance: Array, squares: Array, dimensions: int, tight: float) -> Array:
    """Logarithm of a normal's integral with the likelihood, (..., B), but for what all normals share."""
    volume = dimensions * np.log(tight) + np.linalg.slogdet(covariance)[1]
    return np.asarray(0.5 * (volume + squares))


def _shares(kernels: Array, rest: Array) -> tuple[Array, Array]:
    """Shares (B, M) and (B,) of the posterior, from logarithms of what they are in proportion to."""
    most = np.maximum(kernels.max(axis=1), rest)
    kernels, rest = np.exp(kernels - most[:, None]), np.exp(rest - most)
    total = kernels.sum(axis=1) + rest
    return kernels / total[:, None], rest / total
