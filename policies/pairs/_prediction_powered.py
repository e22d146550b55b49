"""Prompts at random, verdicts corrected by predicted ones: `random`'s honesty with less noise.

The estimate is the difference estimator of survey sampling (Cassel, Sarndal and Wretman, 1976), known today
as prediction-powered inference (Angelopoulos et al., 2023): the mean of all predicted verdicts plus the mean
residual of those bought. It is unbiased whatever the predictions are worth, since prompts are drawn at random
and the predictions are made before any verdict. The *winner* is decided by the posterior: the estimate
combined with the distance foretold from the two methods' outputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from assay.errors import UsageError
from policies.pairs._base import PairPlan, PairPolicy, PairProblem, PairVerdict
from policies.pairs._betting import Draws, bets_for, confidence_bounds, log_capital
from policies.pairs._history import PairHistory
from policies.pairs._predicted import LEAST_METHODS, Foretold, PairPredictor
from policies.pairs._votes import count_votes, sampling_error

__all__ = ["PredictionPoweredPolicy", "RandomPairPolicy"]

Floats = NDArray[np.float64]
Columns = NDArray[np.intp]
Stop = Literal["heuristic", "anytime"]
CAUTION = 6.0  # times the foretold distance's variance: outputs may be unlike any that were seen
DOUBT = 0.02  # added to it
SLOPE_WEIGHT = 20.0  # of a slope of 1, in squared predictions
WIDE = 0.6  # standard deviation of a winning distance of which nothing is foretold


class RandomPairPolicy(PairPolicy):
    """Prompts uniformly at random, without replacement: the baseline that is hard to beat.

    Args:
        stop: What the risk is: "heuristic" (hypergeometric, of the paper) or "anytime" (a betting test that
            holds however often one looks).
    """

    name: ClassVar[str] = "random"
    draws_at_random: ClassVar[bool] = True

    def __init__(self, *, stop: Stop = "heuristic") -> None:
        self.stop = _checked(stop)

    @classmethod
    def named(cls, argument: str) -> dict[str, Any]:
        """See `PairPolicy.named`."""
        return {"stop": argument}

    def params(self) -> dict[str, Any]:
        """See `PairPolicy.params`."""
        return {"stop": self.stop}

    def plan(self, problem: PairProblem) -> PairPlan:
        """See `PairPolicy.plan`."""
        return RandomPlan(problem.rng, Foretold(np.zeros(problem.n_prompts)), self.stop)


class PredictionPoweredPolicy(PairPolicy):
    """See the module. Where nothing can be predicted it is `random`.

    Args:
        stop: As in `RandomPairPolicy`; the heuristic risk is that of the posterior.
    """

    name: ClassVar[str] = "prediction-powered"
    uses_features: ClassVar[bool] = True
    uses_history: ClassVar[bool] = True
    draws_at_random: ClassVar[bool] = True

    def __init__(self, *, stop: Stop = "anytime") -> None:
        self.stop = _checked(stop)
        self._predictor: PairPredictor | None = None

    @classmethod
    def named(cls, argument: str) -> dict[str, Any]:
        """See `PairPolicy.named`."""
        return {"stop": argument}

    def params(self) -> dict[str, Any]:
        """See `PairPolicy.params`."""
        return {"stop": self.stop}

    def wants_outputs(self, described: int) -> bool:
        """See `PairPolicy.wants_outputs`."""
        return described >= LEAST_METHODS

    def prepare(self, history: PairHistory | None) -> None:
        """See `PairPolicy.prepare`."""
        self._predictor = None if history is None else PairPredictor.fit(history)

    def plan(self, problem: PairProblem) -> PairPlan:
        """See `PairPolicy.plan`."""
        nothing = Foretold(np.zeros(problem.n_prompts))
        foretold = nothing if self._predictor is None else self._predictor.foretell(problem)
        return RandomPlan(problem.rng, foretold, self.stop)


def _checked(stop: Stop) -> Stop:
    if stop not in ("heuristic", "anytime"):
        raise UsageError(f"no stopping rule '{stop}'", "heuristic or anytime")
    return stop


class RandomPlan:
    """The first k of a random order, with what was foretold."""

    def __init__(self, rng: np.random.Generator, foretold: Foretold, stop: Stop) -> None:
        self.order = rng.permutation(len(foretold.controls))
        self.foretold, self.stop = foretold, stop
        self.span = float(np.ptp(foretold.controls)) if len(self.order) else 0.0
        variance = foretold.variance
        self.blind = variance is None
        self.expected = foretold.distance
        self.deviation = WIDE if variance is None else float(np.sqrt(CAUTION * variance + DOUBT))

    def redrawn(self, rng: np.random.Generator) -> RandomPlan:
        """The same plan in another random order: a policy's success is a mean over orders."""
        return RandomPlan(rng, self.foretold, self.stop)

    def sample(self, k: int) -> Columns:
        """See `PairPlan.sample`."""
        return self.order[:k]

    def verdict(self, verdicts: Floats, k: int, *, level: float | None = 0.95) -> PairVerdict:
        """See `PairPlan.verdict`."""
        drawn, n = self.order[:k], len(self.order)
        kind = "anytime" if self.stop == "anytime" else "heuristic" if self.blind else "posterior"
        counted = replace(count_votes(verdicts[drawn], n, level, distance_kind="sampling"), risk_kind=kind)
        asked = drawn[~np.isnan(verdicts[drawn])]
        if not len(asked) or len(asked) == n:
            return counted
        mean, error = (float(x) for x in self.estimate(verdicts[asked], asked))
        sure = float(self.sureness(mean, error))
        favoured = int(np.sign(sure - 0.5))
        if self.stop == "anytime":
            risk, low, high = self._anytime(self._draws(verdicts, drawn), favoured, level)
        else:
            half = 2.0 if level is None else float(norm.ppf(0.5 + level / 2)) * error
            risk = counted.risk if self.blind else min(sure, 1.0 - sure)
            low, high = mean - half, mean + half
        return replace(
            counted,
            distance=mean,
            low=min(max(low, -1.0), mean),
            high=max(min(high, 1.0), mean),
            risk=risk,
            favoured=favoured,
        )

    def estimate(self, verdicts: Floats, drawn: Columns) -> tuple[Floats, Floats]:
        """(...) winning distance, in [-1, 1], and its standard error.

        Args:
            verdicts: (..., n) of the draws, n >= 1.
            drawn: (..., n) their prompts.
        """
        controls = self.foretold.controls[drawn]
        # The slope starts at 1, the size that the predictions should have, and follows the verdicts.
        apart = controls - controls.mean(axis=-1, keepdims=True)
        along = (apart * verdicts).sum(axis=-1, keepdims=True) + SLOPE_WEIGHT
        slope = np.maximum(along / ((apart**2).sum(axis=-1, keepdims=True) + SLOPE_WEIGHT), 0.0)
        residuals = verdicts - slope * controls
        mean: Floats = np.clip(residuals.mean(axis=-1), -1.0, 1.0)
        return mean, sampling_error(residuals, len(self.order))

    def sureness(self, mean: Floats | float, error: Floats | float) -> Floats:
        """(...) probability that A wins: an estimate with its standard error, and what was foretold."""
        data = 1.0 / np.maximum(error, 1e-9) ** 2
        prior = 0.0 if self.blind else 1.0 / self.deviation**2
        center = (mean * data + self.expected * prior) / (data + prior)
        sure: Floats = norm.cdf(center * np.sqrt(data + prior))
        return sure

    def _draws(self, verdicts: Floats, drawn: Columns) -> Draws:
        # A prompt that the judge refused stays in the population, as a tie; else it would matter why it did.
        return Draws(
            np.nan_to_num(verdicts[drawn]), len(self.order), self.foretold.controls[drawn], self.span
        )

    def _anytime(self, draws: Draws, favoured: int, level: float | None) -> tuple[float, float, float]:
        """Risk that the favoured winner is wrong, and interval, both valid at every look."""
        above = bets_for(self.expected, self.deviation)
        below = bets_for(-self.expected, self.deviation)
        capital = log_capital(draws, above) if favoured >= 0 else log_capital(draws.turned, below)
        risk = float(min(1.0, np.exp(-capital.max())))
        if level is None:
            return risk, -1.0, 1.0
        return (risk, *confidence_bounds(draws, 1.0 - level, above, below))
