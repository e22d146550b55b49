"""Tests and intervals that hold at every look: betting on draws without replacement.

Source: Waudby-Smith and Ramdas, *Estimating means of bounded random variables by betting* (JRSS B, 2024),
section 5: prompts are drawn in random order without replacement from N verdicts in [-1, 1]. A gambler who
holds that the mean exceeds `null` stakes a share of her capital on every draw; were the mean at most `null`,
the capital would be a non-negative supermartingale of start 1, so that the probability that it ever reaches
1 / a is at most a (Ville), however the time to stop is chosen. Capital is shared among several stakes.

Controls: a prediction c_j of each verdict that was made before any verdict (any numbers). The draw v_t is
replaced by v_t - c_t + (mean of c over the prompts not drawn yet), whose conditional mean is that of v_t:
still a fair game, of less variance where the predictions are good.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

__all__ = ["Bets", "Draws", "bets_for", "confidence_bounds", "log_capital"]

Floats = NDArray[np.float64]
SAFE = 0.95  # most of the capital that one draw may cost
STAKES = np.array([0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9])
CONTROLLED = STAKES < 0.25  # small stakes; controls widen the range of a draw, and so forbid large ones
EVEN = 0.5  # share of the capital that no expectation moves
HALVINGS = 12  # of an interval's end: to 2 / 4096


@dataclass(frozen=True)
class Draws:
    """Verdicts in the order of their draws.

    Attributes:
        values: (k,) in [-1, 1]; a prompt that the judge refused counts as 0.
        population: N >= k.
        controls: (k,) the prediction of each draw, minus the mean prediction over all N; None = no controls.
        span: Largest prediction minus the smallest, over all N.
    """

    values: Floats
    population: int
    controls: Floats | None = None
    span: float = 0.0

    @property
    def turned(self) -> Draws:
        """The same draws with A and B swapped."""
        controls = None if self.controls is None else -self.controls
        return Draws(-self.values, self.population, controls, self.span)


@dataclass(frozen=True)
class Bets:
    """Stakes (G,), each with its share of the capital (G,), and which of them use the controls (G,)."""

    stakes: Floats
    shares: Floats
    controlled: NDArray[np.bool_]


def bets_for(expected: float = 0.0, deviation: float = 0.6) -> Bets:
    """Stakes for a mean expected as a normal variable, given that it is positive.

    A stake of s is best where the mean is s. Expectations move capital, never the validity.
    """
    edges = np.concatenate([[0.0], (STAKES[1:] + STAKES[:-1]) / 2, [1.0]])
    scaled = norm.cdf((edges - expected) / deviation)
    wanted = np.diff(scaled) + 1e-9
    shares = EVEN / len(STAKES) + (1.0 - EVEN) * wanted / wanted.sum()
    return Bets(STAKES, shares, CONTROLLED)


def log_capital(draws: Draws, bets: Bets, *, null: float = 0.0) -> Floats:
    """(k,) log of the capital after each draw, staked against "the mean of all N is at most null".

    inf from where the draws alone exclude that.
    """
    values, n = draws.values, draws.population
    if not len(values):
        return np.zeros(0)
    left = n - np.arange(len(values))  # prompts not drawn before draw t
    expected = (n * null - _before(values)) / left
    controls = np.zeros(len(values)) if draws.controls is None else draws.controls
    surprise = controls + _before(controls) / left  # control minus its mean over those left
    grown = np.full(len(values), -np.inf)
    for stake, share, controlled in zip(bets.stakes, bets.shares, bets.controlled, strict=True):
        shift, span = (surprise, draws.span) if controlled else (0.0, 0.0)
        worst = np.maximum(1.0 + expected + span, 1e-9)
        staked = np.minimum(stake, SAFE / worst)
        gains = np.log1p(np.maximum(staked * (values - shift - expected), -SAFE))
        grown = np.logaddexp(grown, np.log(share) + np.cumsum(gains))
    excluded = np.maximum.accumulate(expected < -1.0 - 1e-9)
    # The draw that makes it impossible may be the last one of all.
    over = values.sum() - (n - len(values)) > n * null + 1e-9
    excluded[-1] |= bool(over)
    return np.where(excluded, np.inf, grown)


def _before(values: Floats) -> Floats:
    """(k,) sum of all earlier draws."""
    return np.concatenate([[0.0], np.cumsum(values)[:-1]])


def confidence_bounds(draws: Draws, error: float, above: Bets, below: Bets) -> tuple[float, float]:
    """Ends of an interval for the mean that holds at all times at once with probability 1 - error.

    Args:
        draws: The draws so far.
        error: Probability in (0, 1) that the interval ever misses the mean.
        above: Stakes for means above a candidate.
        below: Stakes for means below one, of the draws turned round.
    """
    limit = float(np.log(2.0 / error))
    return _lowest(draws, above, limit), -_lowest(draws.turned, below, limit)


def _lowest(draws: Draws, bets: Bets, limit: float) -> float:
    """The largest mean found that the capital rejects, by halving; -1 where it rejects none."""
    low, high = -1.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rejected = len(draws.values) and log_capital(draws, bets, null=middle).max() >= limit
        low, high = (middle, high) if rejected else (low, middle)
    return low
