"""The best of M methods, and their ranking, from verdicts between pairs.

A method's strength is its mean winning distance against all others (its Borda score), which is what a full
round robin would show; it needs no transitivity. Which pair is judged next follows top-two Thompson sampling
(Russo, 2020): a leader and a challenger are drawn from the posterior of the strengths, and the pair is taken
whose verdict most reduces the variance of the difference between the two. All pairs go through the prompts in
the same order, so that a prompt's difficulty cancels in differences, and only few prompts need outputs at
all.

Bradley-Terry strengths (Bradley and Terry, 1952; ties count half for each, as in Chatbot Arena) are fitted
for the ranking that is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from assay.errors import UsageError

__all__ = ["Ranking", "Tournament", "bradley_terry", "pairs_of"]

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]
PRIOR = 1.0  # verdicts of each side added to every pair, so that a unanimous pair keeps some doubt
BT_PRIOR = 0.5  # precision of the normal prior on log-strengths
DRAWS = 2000


def pairs_of(n_methods: int) -> list[tuple[int, int]]:
    """All pairs (i, j), i < j, in the order of rows in every (P, ...) array here."""
    return list(combinations(range(n_methods), 2))


@dataclass(frozen=True)
class Ranking:
    """What the verdicts say of M methods.

    Attributes:
        strength: (M,) mean winning distance against all others, in [-1, 1].
        low, high: (M,) interval of the strength.
        probability_best: (M,) summing to 1.
        bradley_terry: (M,) log-strengths, mean 0; a difference d means winning with odds exp(d).
        bt_low, bt_high: (M,) their interval.
        best_rank, worst_rank: (M,) ranks (1 = best) that are not excluded at the level.
    """

    strength: Floats
    low: Floats
    high: Floats
    probability_best: Floats
    bradley_terry: Floats
    bt_low: Floats
    bt_high: Floats
    best_rank: Counts
    worst_rank: Counts

    @property
    def best(self) -> int:
        """The method to name."""
        return int(self.strength.argmax())


class Tournament:
    """Chooses pairs to judge and ranks the methods; keeps nothing but its settings.

    Args:
        n_methods: M >= 2.
        n_prompts: N; a pair that was judged on all of them is known.
        first: Verdicts that every pair gets before any choice.
    """

    def __init__(self, n_methods: int, n_prompts: int, *, first: int = 4) -> None:
        if n_methods < 2 or n_prompts < 1 or first < 1:
            raise UsageError(
                f"no tournament of {n_methods} methods over {n_prompts} prompts, {first} verdicts first"
            )
        self.pairs = np.array(pairs_of(n_methods), dtype=np.intp)
        self.n_methods, self.n_prompts, self.first = n_methods, n_prompts, min(first, n_prompts)

    def choose(self, sums: Floats, counts: Counts, n: int, rng: np.random.Generator) -> list[int]:
        """The pairs of the next n verdicts, a pair as often as it is to be judged.

        Args:
            sums: (P,) sum of each pair's verdicts (+1, 0, -1).
            counts: (P,) how many there are, those on their way included.
            n: Verdicts wanted; fewer are given only where fewer are left.
            rng: Seeded generator.
        """
        planned = counts.astype(np.intp).copy()
        chosen: list[int] = []
        strength, deviation = self._strengths(sums, counts)
        while len(chosen) < n and (planned < self.n_prompts).any():
            least = int(planned.argmin())
            pair = (
                least if planned[least] < self.first else self._pull(strength, deviation, planned, sums, rng)
            )
            planned[pair] += 1
            chosen.append(pair)
        return chosen

    def rank(self, sums: Floats, counts: Counts, *, level: float = 0.95) -> Ranking:
        """Judge the methods by the verdicts so far."""
        strength, deviation = self._strengths(sums, counts)
        half = float(norm.ppf(0.5 + level / 2)) * deviation
        bt, covariance = bradley_terry(self._wins(sums, counts))
        spread = float(norm.ppf(0.5 + level / 2)) * np.sqrt(np.diag(covariance))
        best, worst = self._rank_ranges(strength, deviation, level)
        return Ranking(
            strength,
            np.maximum(strength - half, -1.0),
            np.minimum(strength + half, 1.0),
            self._probability_best(strength, deviation),
            bt,
            bt - spread,
            bt + spread,
            best,
            worst,
        )

    def _pair_moments(self, sums: Floats, counts: Counts) -> tuple[Floats, Floats]:
        """Mean verdict of each pair over all prompts, and its variance, by a weak prior."""
        n = counts + 2 * PRIOR
        shrunk = sums / n
        # What was judged is known; only the prompts that were not are uncertain.
        left = np.maximum(self.n_prompts - counts, 0) / self.n_prompts
        # Not shrunk: a leader has more verdicts, would be shrunk less, and would seem better for that alone.
        mean = np.where(counts > 0, sums / np.maximum(counts, 1), 0.0)
        return mean, left * (1.0 - shrunk**2) / n

    def _strengths(self, sums: Floats, counts: Counts) -> tuple[Floats, Floats]:
        mean, variance = self._pair_moments(sums, counts)
        strength, spread = np.zeros(self.n_methods), np.zeros(self.n_methods)
        first, second = self.pairs.T
        np.add.at(strength, first, mean)
        np.add.at(strength, second, -mean)
        np.add.at(spread, first, variance)
        np.add.at(spread, second, variance)
        others = self.n_methods - 1
        return strength / others, np.sqrt(spread) / others

    def _pull(
        self, strength: Floats, deviation: Floats, planned: Counts, sums: Floats, rng: np.random.Generator
    ) -> int:
        """The pair that says most about a drawn leader against its challenger."""
        leader = int((strength + deviation * rng.standard_normal(self.n_methods)).argmax())
        gap = np.maximum(strength[leader] - strength, 0.0)
        cost = gap / np.sqrt(deviation[leader] ** 2 + deviation**2 + 1e-12)
        cost = cost + 1e-9 * rng.random(self.n_methods)
        cost[leader] = np.inf
        challenger = int(cost.argmin())
        first, second = self.pairs.T
        weight = np.where((first == leader) | (second == leader), 1.0, 0.0)
        weight += np.where((first == challenger) | (second == challenger), 1.0, 0.0)  # 2 for their own pair
        n = planned + 2 * PRIOR
        gain = weight**2 * (1.0 - (sums / n) ** 2) / (n * (n + 1.0))
        gain[planned >= self.n_prompts] = -1.0
        return int(gain.argmax())

    def _probability_best(self, strength: Floats, deviation: Floats) -> Floats:
        rng = np.random.default_rng(0)  # part of the formula: the same verdicts give the same answer
        drawn = strength + deviation * rng.standard_normal((DRAWS, self.n_methods))
        share: Floats = np.bincount(drawn.argmax(axis=1), minlength=self.n_methods) / DRAWS
        return share

    def _rank_ranges(self, strength: Floats, deviation: Floats, level: float) -> tuple[Counts, Counts]:
        """A method ranks behind those that are surely better, and ahead of those surely worse
        (Bonferroni).
        """
        z = float(norm.ppf(1 - (1 - level) / (2 * max(len(self.pairs), 1))))
        apart = strength[:, None] - strength[None, :]
        surely = apart > z * np.sqrt(deviation[:, None] ** 2 + deviation[None, :] ** 2) + 1e-12
        best = 1 + surely.sum(axis=0)
        worst = self.n_methods - surely.sum(axis=1)
        return best.astype(np.intp), worst.astype(np.intp)

    def _wins(self, sums: Floats, counts: Counts) -> Floats:
        """(M, M) wins of the row's method over the column's, ties as halves."""
        wins = np.zeros((self.n_methods, self.n_methods))
        first, second = self.pairs.T
        wins[first, second] = (counts + sums) / 2
        wins[second, first] = (counts - sums) / 2
        return wins


def bradley_terry(wins: Floats, *, sweeps: int = 50) -> tuple[Floats, Floats]:
    """Log-strengths and their covariance (Laplace), by Newton's method under a weak normal prior.

    Args:
        wins: (M, M) how often the row's method won over the column's.
        sweeps: Most Newton steps.

    Returns:
        (M,) strengths with mean 0 and their (M, M) covariance.
    """
    games = wins + wins.T
    beta: Floats = np.zeros(len(wins))
    precision = BT_PRIOR * np.eye(len(wins))
    for _ in range(sweeps):
        p = 1.0 / (1.0 + np.exp(np.clip(beta[None] - beta[:, None], -30, 30)))
        gradient = (wins - games * p).sum(axis=1) - BT_PRIOR * beta
        curvature = games * p * (1 - p)
        hessian = np.diag(curvature.sum(axis=1)) - curvature + precision
        step = np.linalg.solve(hessian, gradient)
        beta = beta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    covariance: Floats = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    return beta - float(beta.mean()), covariance
