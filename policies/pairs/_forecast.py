"""Forecast: predict all verdicts from other pairs and from the outputs, ask where that says most of the
winner.

Not from a paper. A verdict of (A, B) on prompt j is modelled as linear-Gaussian: its covariance over prompts
is that of the verdicts of all pairs of history methods (a factor model), and the winning distance starts at
what the outputs' lengths and formatting foretell. Prompts are asked in the order that most reduces the
variance of the winning distance (a static design: it does not depend on the answers), and the winner is the
sign of the posterior mean over all prompts. docs/compare.md has what was measured, docs/decisions/0011 why it
is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

from assay.errors import UsageError
from policies.pairs._base import PairPlan, PairPolicy, PairProblem, PairVerdict
from policies.pairs._history import PairHistory
from policies.pairs._moments import FeatureForecast, fit_forecast, mixed_factors, verdict_moments

__all__ = ["ForecastPolicy"]

Floats = NDArray[np.float64]
Columns = NDArray[np.intp]
PRIOR_SPREAD = 0.36  # mean squared winning distance where there is no history (uniform on [-1, 1] has 1/3)
LEAST_METHODS = 6
MOST_PROMPTS = 4000  # beyond, the N x N moments are not made, and the policy works without history
MOST_DESIGNED = 200  # prompts chosen for the variance; the rest follow at random


class ForecastPolicy(PairPolicy):
    """See the module. Without history, prompts are drawn at random and the posterior is that of random votes.

    Args:
        rank: Factors of the verdicts' covariance.
        inflation: Factor on the posterior standard deviation in intervals and risk, for what the model does
            not
            know; measured on pairs of half of AlpacaEval's models.
    """

    name: ClassVar[str] = "forecast"
    uses_features: ClassVar[bool] = True
    uses_history: ClassVar[bool] = True

    def __init__(self, *, rank: int = 16, inflation: float = 1.3) -> None:
        if rank < 1 or inflation <= 0:
            raise UsageError(f"forecast needs rank >= 1 and inflation > 0, got {rank} and {inflation:g}")
        self.rank, self.inflation = rank, inflation
        self._past: _Past | None = None

    def params(self) -> dict[str, Any]:
        """See `PairPolicy.params`."""
        return {"rank": self.rank, "inflation": self.inflation}

    def prepare(self, history: PairHistory | None) -> None:
        """See `PairPolicy.prepare`."""
        self._past = None if history is None else _Past.of(history, self.rank)

    def plan(self, problem: PairProblem) -> PairPlan:
        """See `PairPolicy.plan`."""
        return ForecastPlan(_prior(problem, self._past), problem, self.inflation)


@dataclass(frozen=True)
class _Past:
    """What was learned of history pairs; loadings and own variance are None where there are too few
    methods.
    """

    loadings: Floats | None
    own: Floats | None
    forecast: FeatureForecast | None

    @classmethod
    def of(cls, history: PairHistory, rank: int) -> _Past:
        forecast = fit_forecast(history)
        if len(history.kept) < LEAST_METHODS or history.scores.shape[1] > MOST_PROMPTS:
            return cls(None, None, forecast)
        return cls(*mixed_factors(verdict_moments(history), rank), forecast)


@dataclass(frozen=True)
class Prior:
    """Before any verdict: mean (N,), low-rank covariance L L' + spread u u', and own variances (N,)."""

    mean: Floats
    factors: Floats
    own: Floats

    @property
    def covariance_with_distance(self) -> Floats:
        """(N,) covariance of each verdict's shared part with the mean over all prompts."""
        shared: Floats = self.factors @ self.factors.mean(axis=0)
        return shared


def _prior(problem: PairProblem, past: _Past | None) -> Prior:
    n = problem.n_prompts
    if past is None or past.loadings is None or past.own is None:
        factors = np.full((n, 1), np.sqrt(PRIOR_SPREAD))
        own = np.full(n, 1.0 - PRIOR_SPREAD)
    else:
        columns = np.arange(n) if problem.columns is None else problem.columns
        factors, own = past.loadings[columns], past.own[columns]
    return _foretold(Prior(np.zeros(n), factors, own), problem.features, past)


def _foretold(prior: Prior, features: Floats | None, past: _Past | None) -> Prior:
    """The prior once the winning distance is foretold with a known error: as if it had been measured so."""
    forecast = None if past is None else past.forecast
    direction = prior.factors.mean(axis=0)
    spread = float(direction @ direction)
    if features is None or forecast is None or spread <= 0 or forecast.error >= forecast.spread:
        return prior
    left = forecast.error / forecast.spread  # share of the distance's variance that the forecast leaves
    unit = direction / np.sqrt(spread)
    along = prior.factors @ unit  # (N,) loading on the distance's own direction
    factors = prior.factors - np.outer(along, unit) * (1.0 - np.sqrt(left))
    return Prior(along / np.sqrt(spread) * forecast.distance(features), factors, prior.own)


class ForecastPlan:
    """The design's order, and the posterior of the winning distance."""

    def __init__(self, prior: Prior, problem: PairProblem, inflation: float) -> None:
        self.prior, self.inflation = prior, inflation
        self.order = _design(prior, problem.rng)

    def sample(self, k: int) -> Columns:
        """See `PairPlan.sample`."""
        return self.order[:k]

    def verdict(self, verdicts: Floats, k: int, *, level: float = 0.95) -> PairVerdict:
        """See `PairPlan.verdict`."""
        asked = self.order[:k]
        asked = asked[~np.isnan(verdicts[asked])]
        known = verdicts[asked]
        mean, std = self._posterior(asked, known)
        std *= self.inflation
        half = float(norm.ppf(0.5 + level / 2)) * std
        risk = float(norm.cdf(-abs(mean) / std)) if std > 0 else 0.0
        a, b = int((known > 0).sum()), int((known < 0).sum())
        return PairVerdict(
            mean,
            max(-1.0, mean - half),
            min(1.0, mean + half),
            risk,
            "posterior",
            "predicted",
            a,
            b,
            len(known) - a - b,
        )

    def _posterior(self, asked: Columns, known: Floats) -> tuple[float, float]:
        """Mean and standard deviation of the winning distance over all prompts, given some verdicts."""
        prior, n = self.prior, len(self.order)
        left = np.ones(n, dtype=bool)
        left[asked] = False
        factors, rest = prior.factors[asked], prior.factors[left].sum(axis=0)
        total = known.sum() + prior.mean[left].sum()
        variance = float(rest @ rest + prior.own[left].sum())
        if len(asked):
            solved = cho_factor(factors @ factors.T + np.diag(prior.own[asked]))
            shared = factors @ rest
            total += float(shared @ cho_solve(solved, known - prior.mean[asked]))
            variance -= float(shared @ cho_solve(solved, shared))
        mean = float(np.clip(total / n, -1.0, 1.0))
        return mean, float(np.sqrt(max(variance, 0.0)) / n)


def _design(prior: Prior, rng: np.random.Generator) -> Columns:
    """Greedily by Cov(distance, verdict)^2 / Var(verdict), as if answered; ties and the tail at random."""
    n = len(prior.mean)
    shuffle = rng.permutation(n)  # equal prompts are asked in random order
    factors, own = prior.factors[shuffle], prior.own[shuffle]
    shared = factors @ factors.mean(axis=0) + own / n
    variance = (factors**2).sum(axis=1) + own
    chosen = np.zeros(n, dtype=bool)
    order: list[int] = []
    steps = np.zeros((min(n, MOST_DESIGNED), n))
    for t in range(len(steps)):
        j = int(np.where(chosen, -1.0, shared**2 / variance).argmax())
        column = factors @ factors[j] - steps[:t].T @ steps[:t, j]
        column[j] += own[j]
        steps[t] = column / np.sqrt(max(variance[j], 1e-12))
        shared = shared - steps[t] * steps[t].mean()
        variance = np.maximum(variance - steps[t] ** 2, 1e-12)
        chosen[j] = True
        order.append(j)
    return np.concatenate([shuffle[order], shuffle[~chosen]]).astype(np.intp)
