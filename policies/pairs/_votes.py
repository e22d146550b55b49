"""Counting verdicts, and the hypergeometric risk of the published stopping rule (DiffUse, appendix A.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom, norm

from policies.pairs._base import PairVerdict

__all__ = ["count_votes", "hypergeometric_risk", "sampling_error"]


def hypergeometric_risk(votes: int, sample: int, population: int) -> float:
    """sf(votes - 1; population, population / 2, sample): such a win or a clearer one by chance, at 50 %.

    A heuristic wherever prompts are not drawn at random, and conservative where there are ties.

    Args:
        votes: Votes of the winner in the sample.
        sample: Verdicts in the sample, ties included.
        population: Prompts in all.
    """
    return float(hypergeom.sf(votes - 1, population, population // 2, sample))


def sampling_error(sample: NDArray[np.float64], population: int) -> NDArray[np.float64]:
    """(...) standard error of the mean of (..., n) draws without replacement, n >= 1, of values about as
    large as verdicts.
    """
    n = sample.shape[-1]
    # One verdict of each side more: without them a unanimous sample would have no spread at all.
    spread = ((sample**2).sum(axis=-1) + 2.0) / (n + 2.0) - (sample.sum(axis=-1) / (n + 2.0)) ** 2
    left = max(population - n, 0) / max(population - 1, 1)
    error: NDArray[np.float64] = np.sqrt(np.maximum(spread, 0.0) / n * left)
    return error


def count_votes(
    verdicts: NDArray[np.float64], population: int, level: float | None, *, distance_kind: str
) -> PairVerdict:
    """The majority of a sample's verdicts (NaN left out), a normal interval with finite-population
    correction.

    The interval is that of a random sample; with another kind of sample it is no more honest than the risk.
    """
    known = verdicts[~np.isnan(verdicts)]
    n, a, b = len(known), int((known > 0).sum()), int((known < 0).sum())
    if n == 0:
        return PairVerdict(0.0, -1.0, 1.0, 1.0, "heuristic", distance_kind, 0, 0, 0)
    mean = (a - b) / n
    half = 2.0 if level is None else float(norm.ppf(0.5 + level / 2) * sampling_error(known, population))
    risk = hypergeometric_risk(max(a, b), n, population) if n < population else float(a == b)
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return PairVerdict(mean, low, high, risk, "heuristic", distance_kind, a, b, n - a - b)
