"""Likelihoods of the score types and the objective of the neural process, in log space.

A score's distribution is decided by one logit eta: Bernoulli(sigmoid(eta)) for binary scores; Beta with mean
sigmoid(eta) for real ones; for k categories, P(level l) proportional to exp(c_l + s v_l eta) (adjacent-
category logits), with which two levels 0 and 1 are the Bernoulli again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from estimators._neural_process_network import Gaussian, Logits

__all__ = ["EDGE", "ScoreHead", "kl_divergence", "marginal_logit", "quadrature"]

EDGE = 0.002  # real scores are kept this far from 0 and 1, where the Beta density is 0 or infinite


class Levels(NamedTuple):
    """Adjacent-category parameters of T prompts: values, constants and mask, each (B, T, k)."""

    values: Tensor
    constants: Tensor
    mask: Tensor


class ScoreHead(nn.Module):
    """The likelihood of scores given logits, for prompts of mixed types.

    Args:
        prompts: N.
        levels: Levels in [0, 1] of each group of prompts (one group per dataset).
    """

    type_index: Tensor
    group: Tensor
    values: Tensor
    present: Tensor

    def __init__(self, prompts: int, levels: list[NDArray[np.float64]]) -> None:
        super().__init__()
        size = max(len(group) for group in levels)
        self.register_buffer("type_index", torch.zeros(prompts, dtype=torch.long))
        self.register_buffer("group", torch.zeros(prompts, dtype=torch.long))
        self.register_buffer("values", torch.zeros(len(levels), size))
        self.register_buffer("present", torch.zeros(len(levels), size, dtype=torch.bool))
        self.constants = nn.Parameter(torch.zeros(len(levels), size))
        self.log_steps = nn.Parameter(torch.zeros(len(levels)))
        self._start(levels)

    @torch.no_grad()
    def _start(self, levels: list[NDArray[np.float64]]) -> None:
        """Begin at the binomial distribution, whose mean is sigmoid(eta) for evenly spaced levels."""
        for i, group in enumerate(levels):
            steps = len(group) - 1
            k = torch.from_numpy(np.round(group * steps)).float()
            self.values[i, : len(group)] = torch.from_numpy(group).float()
            self.present[i, : len(group)] = True
            top = torch.lgamma(torch.tensor(steps + 1.0))
            self.constants[i, : len(group)] = top - torch.lgamma(k + 1) - torch.lgamma(steps - k + 1)
            self.log_steps[i] = float(np.log(max(steps, 1)))

    def log_likelihood(self, scores: Tensor, eta: Tensor, log_concentration: Tensor, index: Tensor) -> Tensor:
        """(B, T) log density of scores given logits; all arguments (B, T)."""
        kind = self.type_index[index]
        result = scores * eta - functional.softplus(eta)
        if (self.type_index == 1).any():
            result = torch.where(kind == 1, _beta(scores, eta, log_concentration), result)
        if (self.type_index == 2).any():
            result = torch.where(kind == 2, self._categorical(scores, eta, index), result)
        return result

    def moments(self, eta: Tensor, log_concentration: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (B, T) of a score given its logit."""
        mean = torch.sigmoid(eta)
        variance = mean * (1 - mean)
        kind = self.type_index[index]
        if (self.type_index == 1).any():
            variance = torch.where(kind == 1, variance / (1 + torch.exp(log_concentration)), variance)
        if (self.type_index == 2).any():
            share, values = self._shares(eta, index)
            level = (share * values).sum(-1)
            spread = (share * values**2).sum(-1) - level**2
            mean = torch.where(kind == 2, level, mean)
            variance = torch.where(kind == 2, spread, variance)
        return mean, variance

    def draw(self, eta: Tensor, log_concentration: Tensor, index: Tensor, rng: np.random.Generator) -> Tensor:
        """(B, T) scores drawn given their logits."""
        uniform = torch.from_numpy(rng.random(tuple(eta.shape), dtype=np.float32)).to(eta.device)
        kind = self.type_index[index]
        result = (uniform < torch.sigmoid(eta)).to(eta.dtype)
        if (self.type_index == 1).any():
            a, b = (part.double().cpu().numpy() for part in _beta_parameters(eta, log_concentration))
            drawn = torch.from_numpy(rng.beta(a, b)).to(eta)
            result = torch.where(kind == 1, drawn, result)
        if (self.type_index == 2).any():
            share, values = self._shares(eta, index)
            chosen = (uniform[..., None] > share.cumsum(-1)).sum(-1, keepdim=True)
            chosen = torch.minimum(chosen, self._levels(index).mask.sum(-1, keepdim=True) - 1)
            result = torch.where(kind == 2, values.gather(-1, chosen.clamp_min(0))[..., 0], result)
        return result

    def _levels(self, index: Tensor) -> Levels:
        group = self.group[index]
        return Levels(self.values[group], self.constants[group], self.present[group])

    def _log_shares(self, eta: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        values, constants, mask = self._levels(index)
        steps = torch.exp(self.log_steps)[self.group[index]]
        raw = constants + values * (steps * eta)[..., None]
        # -1e4 rather than -inf: groups without levels (other types) must not make NaN gradients.
        return torch.log_softmax(raw.masked_fill(~mask, -1e4), dim=-1), values

    def _shares(self, eta: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        logs, values = self._log_shares(eta, index)
        return logs.exp(), values

    def _categorical(self, scores: Tensor, eta: Tensor, index: Tensor) -> Tensor:
        logs, values = self._log_shares(eta, index)
        distance = (values - scores[..., None]).abs().masked_fill(~self._levels(index).mask, torch.inf)
        return logs.gather(-1, distance.argmin(-1, keepdim=True))[..., 0]


def _beta_parameters(eta: Tensor, log_concentration: Tensor) -> tuple[Tensor, Tensor]:
    concentration = torch.exp(log_concentration.clamp(-4, 8))
    mean = torch.sigmoid(eta.clamp(-7, 7))
    return mean * concentration + 1e-3, (1 - mean) * concentration + 1e-3


def _beta(scores: Tensor, eta: Tensor, log_concentration: Tensor) -> Tensor:
    a, b = _beta_parameters(eta, log_concentration)
    y = scores.clamp(EDGE, 1 - EDGE)
    normaliser = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    return (a - 1) * torch.log(y) + (b - 1) * torch.log1p(-y) + normaliser


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """(B,) KL(q || p) of eq. 3."""
    ratio = p.inverse @ q.root
    shift = (p.inverse @ (q.mean - p.mean)[:, :, None])[:, :, 0]
    size = q.mean.shape[1]
    trace, distance = ratio.square().sum((1, 2)), shift.square().sum(1)
    return 0.5 * (trace + distance - size + p.log_determinant - q.log_determinant)


def marginal_logit(logits: Logits, latent: Gaussian) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B, T) of the logit, the latent integrated out."""
    mean = logits.offset + (logits.slope @ latent.mean[:, :, None])[:, :, 0]
    return mean, (logits.slope @ latent.root).square().sum(-1).clamp_min(1e-8).sqrt()


def quadrature(nodes: int) -> tuple[list[float], list[float]]:
    """Nodes and weights that integrate against a standard normal (Gauss-Hermite)."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return list(points), list(weights / weights.sum())
