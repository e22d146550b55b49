"""Top-two: find the best row with what other methods' history says about this one's unknown scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import ScoreMatrix
from estimators import Estimator, SupportsLinearization
from policies._base import Policy, PolicyState, Recommendation, Selection
from policies._rows import probability_best, row_weights
from policies._ucb_e import UcbEPolicy

__all__ = ["TopTwoPolicy"]

LEAST_CHANCE = 1e-4  # rows less likely to be the best are no leaders
DOUBT = 2.0  # standard errors by which a history must have failed before it is dropped
LEAST_KNOWN = 8  # scores of a row before the history is judged on them
MOST_JUDGED = 64  # scores of a row that it is judged on


class TopTwoPolicy(Policy):
    """Top-two Thompson sampling over the posteriors of the rows' benchmark scores.

    Each row's score has a normal posterior from the estimator, linearised at what is known of the row.
    A leader is drawn with its probability of being the best; its challenger is the row that is hardest to
    tell from it, argmax_j (m_j - m_I) / sqrt(v_j + v_I) (Jourdan et al., 2022); of the two, the row whose
    next prompt promises the larger drop in variance per cost is asked. Inside a row, prompts follow the
    expected variance reduction of the benchmark score per cost, Cov(score, y_j)^2 / Var(y_j) / cost_j,
    greedily, as if answered at the mean.

    Without an estimator that can be linearised there is no history to go by, and the policy is UCB-E. It is
    UCB-E, too, while the history fails on the study's own answers: half of each row's known scores are
    predicted from the other half, and the estimator must err less (in squared error, over all rows) than the
    row's mean does.

    Args:
        confidence: Stop (choose nothing) once a row is the best with this probability; 1 = never.
        batch: Prompts of the chosen row before the posteriors are looked at again.
        seed: Unused; kept for the common constructor.
    """

    name: ClassVar[str] = "top-two"
    design: ClassVar[str] = "variance-reduction"
    uses_total: ClassVar[bool] = False

    def __init__(self, *, confidence: float = 1.0, batch: int = 5, seed: int = 0) -> None:
        super().__init__(seed=seed)
        if not 0 < confidence <= 1 or batch < 1:
            raise BadInputError(
                f"top-two needs 0 < confidence <= 1 and batch >= 1, got {confidence:g} and {batch}"
            )
        self.confidence = confidence
        self.batch = batch
        self._fallback = UcbEPolicy(batch=batch, seed=seed)
        self._memory = _Memory()

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"confidence": self.confidence, "batch": self.batch, **super().params()}

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """Forget what another estimator version believed."""
        self._memory = _Memory()

    def recommend(self, state: PolicyState) -> Recommendation:
        """See `SupportsRecommendation.recommend`; pending cells change nothing."""
        beliefs = self._beliefs(replace(state, pending=np.zeros_like(state.pending)))
        if not _trusted(beliefs):
            return self._fallback.recommend(state)
        mean, std = _moments(beliefs)
        return Recommendation(mean, std, probability_best(mean, std), "predicted")

    def _select(self, state: PolicyState, n: int) -> Selection:
        if self.confidence < 1 and self.recommend(state).probability_best.max() >= self.confidence:
            return Selection.of(0, [])
        beliefs = self._beliefs(state)
        return self._pull(state, beliefs, n) if _trusted(beliefs) else self._fallback.select(state, n)

    def _pull(self, state: PolicyState, beliefs: list[_Belief], n: int) -> Selection:
        candidates = state.candidates
        parts = []
        while n > 0 and candidates.any():
            row, chance = _draw_row(state, beliefs, candidates)
            columns, gains, beliefs[row] = beliefs[row].ask(
                candidates[row], state.cost[row], min(n, self.batch)
            )
            candidates[row, columns] = False
            probability = np.where(np.arange(len(columns)) == 0, chance, 1.0)
            parts.append(Selection.of(row, columns, probability=probability, gain=gains))
            n -= len(columns)
        return Selection.of(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.columns for part in parts]),
            probability=np.concatenate([part.probability for part in parts]),
            gain=np.concatenate([part.gain for part in parts]),
        )

    def _beliefs(self, state: PolicyState) -> list[_Belief]:
        """What the history says of each row; nothing where there is no history to go by."""
        if not isinstance(state.estimator, SupportsLinearization):
            return []
        weights = row_weights(state)
        beliefs = self._memory.beliefs(state.estimator, state.scores, weights)
        waiting = state.pending.any(axis=1)
        return [
            belief.pending(state.pending[i]) if waiting[i] else belief for i, belief in enumerate(beliefs)
        ]


def _trusted(beliefs: list[_Belief]) -> bool:
    """Whether there is a history, and it has not predicted the study's answers worse than row means do.

    Worse beyond chance: with few answers the comparison swings, and a history that is good for the study must
    not be dropped and taken up again from step to step.
    """
    if not beliefs:
        return False
    total = sum(belief.evidence[0] for belief in beliefs)
    spread = float(np.sqrt(sum(belief.evidence[1] for belief in beliefs)))
    return total >= -DOUBT * spread


def _moments(beliefs: list[_Belief]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(R,) means and standard deviations."""
    mean = np.array([belief.mean for belief in beliefs])
    variance = np.array([belief.variance for belief in beliefs])
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _draw_row(state: PolicyState, beliefs: list[_Belief], candidates: NDArray[np.bool_]) -> tuple[int, float]:
    """The row to ask, and the probability with which it was drawn."""
    mean, std = _moments(beliefs)
    chance = probability_best(mean, std)
    leaders = np.flatnonzero(chance > LEAST_CHANCE)
    asked = _row_of_leader(leaders, mean, std, beliefs, candidates, state.cost)
    share = chance[leaders] / chance[leaders].sum()
    row = int(asked[state.rng.choice(len(leaders), p=share)])
    return row, float(min(1.0, share[asked == row].sum()))


def _row_of_leader(
    leaders: NDArray[np.intp],
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    beliefs: list[_Belief],
    candidates: NDArray[np.bool_],
    cost: NDArray[np.float64],
) -> NDArray[np.intp]:
    """The row that is asked if each of the leaders is drawn: itself or its challenger."""
    is_open = np.asarray(candidates.any(axis=1))
    both = np.sqrt(std[leaders, None] ** 2 + std**2) + 1e-12
    distance = (mean - mean[leaders, None]) / both
    distance[np.arange(len(leaders)), leaders] = -np.inf
    # A challenger of which nothing is left to ask is passed over, unless the leader itself can be asked.
    distance[:, ~is_open] -= np.where(is_open[leaders], 0.0, 1e9)[:, None]
    challengers = distance.argmax(axis=1)
    promise = np.full(len(mean), -np.inf)
    for row in np.unique(np.concatenate([leaders, challengers])):
        if is_open[row]:
            promise[row] = beliefs[row].promise(candidates[row], cost[row])
    asked: NDArray[np.intp] = np.where(promise[challengers] > promise[leaders], challengers, leaders)
    return asked


@dataclass(frozen=True)
class _Belief:
    """One row's scores, linearised, as y = mean + loadings u + e; arrays over the N prompts.

    Attributes:
        mean: Expected benchmark score.
        variance: Its variance.
        left: (N,) weight of each prompt that is still unknown, else 0.
        loadings: (N, D).
        covariance: (D, D) of u.
        noise: (N,) variance of e.
        evidence: How much less the estimator erred on half of the known scores than the row's mean (squared
            errors, summed), and the variance of that sum.
    """

    mean: float
    variance: float
    left: NDArray[np.float64]
    loadings: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise: NDArray[np.float64]
    evidence: tuple[float, float]

    @classmethod
    def of(
        cls, estimator: SupportsLinearization, scores: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> _Belief:
        """Linearise at the posterior of one row."""
        line = estimator.linearize(scores[None])
        loadings = line.loadings if line.loadings.ndim == 2 else line.loadings[0]
        unknown = np.isnan(scores)
        left = np.where(unknown, weights, 0.0)
        mean = float(weights @ np.where(unknown, line.mean[0], scores))
        slope = left @ loadings
        variance = float(slope @ line.covariance[0] @ slope + left**2 @ line.noise[0])
        evidence = _evidence(estimator, scores)
        return cls(mean, variance, left, loadings, line.covariance[0], line.noise[0], evidence)

    @cached_property
    def gains(self) -> NDArray[np.float64]:
        """(N,) drop in the score's variance from each unknown prompt's answer."""
        spread = self.loadings @ self.covariance  # (N, D)
        own = np.einsum("nd,nd->n", spread, self.loadings) + self.noise
        shared = spread @ (self.left @ self.loadings) + self.left * self.noise
        gain: NDArray[np.float64] = shared**2 / np.maximum(own, 1e-12)
        return gain

    def promise(self, open_: NDArray[np.bool_], cost: NDArray[np.float64]) -> float:
        """The largest drop in variance per cost among the open prompts."""
        return float(np.where(open_, self.gains / cost, -np.inf).max())

    def answered(self, j: int, gain: float) -> Self:
        """The belief after an answer to prompt j that was as expected."""
        spread = self.covariance @ self.loadings[j]
        own = self.loadings[j] @ spread + self.noise[j]
        left = self.left.copy()
        left[j] = 0.0
        return replace(
            self,
            variance=max(self.variance - gain, 0.0),
            left=left,
            covariance=self.covariance - np.outer(spread, spread) / max(float(own), 1e-12),
        )

    def pending(self, pending: NDArray[np.bool_]) -> Self:
        """The belief as if all pending prompts had been answered as expected."""
        belief = self
        for j in np.flatnonzero(pending):
            belief = belief.answered(int(j), float(belief.gains[j]))
        return belief

    def ask(
        self, open_: NDArray[np.bool_], cost: NDArray[np.float64], n: int
    ) -> tuple[NDArray[np.intp], NDArray[np.float64], Self]:
        """The n best open prompts one after the other, their gains, and the belief after them."""
        belief, open_ = self, open_.copy()
        columns, gains = [], []
        for _ in range(min(n, int(open_.sum()))):
            gain = belief.gains
            j = int(np.where(open_, gain / cost, -np.inf).argmax())
            columns.append(j)
            gains.append(float(gain[j]))
            open_[j] = False
            belief = belief.answered(j, gains[-1])
        return np.array(columns, dtype=np.intp), np.array(gains), belief


def _evidence(estimator: SupportsLinearization, scores: NDArray[np.float64]) -> tuple[float, float]:
    """Squared error of the row's mean less that of the estimator, predicting every second known score."""
    known = np.flatnonzero(~np.isnan(scores))
    if len(known) < LEAST_KNOWN:
        return 0.0, 0.0
    known = known[:: -(-len(known) // MOST_JUDGED)]
    hidden, shown = known[1::2], known[::2]
    partial = np.full_like(scores, np.nan)
    partial[shown] = scores[shown]
    predicted = estimator.linearize(partial[None]).mean[0, hidden]
    mean = (scores[shown].sum() + 0.5) / (len(shown) + 1.0)
    less = (scores[hidden] - mean) ** 2 - (scores[hidden] - predicted) ** 2
    return float(less.sum()), float((less**2).sum())


class _Memory:
    """The beliefs of the last state, to be kept for rows that have not changed.

    A cache, not a state: a belief is a function of the estimator and its row's scores and weights alone.
    """

    def __init__(self) -> None:
        self._estimator: Any = None
        self._seen = np.empty((0, 0))
        self._beliefs: list[_Belief] = []

    def beliefs(
        self, estimator: Any, scores: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> list[_Belief]:
        """The belief of each of R rows, from scores and weights (R, N)."""
        seen = np.hstack([scores, weights])
        if estimator is self._estimator and seen.shape == self._seen.shape:
            same = (seen.view(np.int64) == self._seen.view(np.int64)).all(axis=1)  # bitwise, for NaN's sake
        else:
            same = np.zeros(len(seen), dtype=bool)
        self._beliefs = [
            self._beliefs[i] if same[i] else _Belief.of(estimator, scores[i], weights[i])
            for i in range(len(seen))
        ]
        self._estimator, self._seen = estimator, seen
        return self._beliefs
