"""Policies on a low-rank ensemble: LRF, UCB-E-LRF and its score-only ablation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from estimators._low_rank_core import LowRankEnsemble, LowRankFit
from policies._base import Policy, PolicyState, Recommendation, Selection
from policies._rows import RowMeans, probability_best, row_weights, tied_best

__all__ = ["LrfPolicy", "UcbELrfPolicy", "UcbELrfScoreOnlyPolicy"]


class LrfPolicy(Policy):
    """LRF (Zhou et al., algorithm 5): uniform cells; rows judged by known and predicted scores.

    Args:
        rank: Of the factorization.
        members: Ensemble size C.
        drop: Share of the known scores that each member does not see.
        batch: Cells to choose at once.
        seed: Of the ensemble's dropped entries.
    """

    name: ClassVar[str] = "lrf"
    uses_total: ClassVar[bool] = False

    def __init__(
        self, *, rank: int = 1, members: int = 64, drop: float = 0.05, batch: int = 32, seed: int = 0
    ) -> None:
        super().__init__(seed=seed)
        if batch < 1:
            raise BadInputError(f"policy '{self.name}' needs batch >= 1, got {batch}")
        self.batch = batch
        self.model = LowRankEnsemble(rank=rank, members=members, drop=drop, seed=seed)

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        model = self.model
        return {
            "rank": model.rank,
            "members": model.members,
            "drop": model.drop,
            "batch": self.batch,
            **super().params(),
        }

    def recommend(self, state: PolicyState) -> Recommendation:
        """Means of equation 2; spread of the members scaled to a standard error, plus residual noise."""
        if np.isnan(state.scores).all():
            return RowMeans.of(state).recommendation()
        completion = _Completion.of(self.model, state)
        std = completion.row_std()
        return Recommendation(
            completion.row_means, std, probability_best(completion.row_means, std), "predicted"
        )

    def _select(self, state: PolicyState, n: int) -> Selection:
        return _uniform_cells(state, n)


class UcbELrfPolicy(LrfPolicy):
    """UCB-E-LRF (Zhou et al., algorithm 2).

    After a warm-up of uniform cells: the row with the largest
    B_i = mean over j of (O S + (1 - O) (S_hat + eta R)), infinite for a row of which nothing is known or
    pending, ties at random; then its `batch` columns of largest R, ties at random. Beyond one batch, the
    cells already chosen lose their R, as pending cells do, and the next row is chosen.

    Args:
        eta: Weight of the members' raw standard deviation R; 0.1 to 5 are alike in the paper.
        warmup: Share of the matrix drawn uniformly first.
        rank, members, drop, batch, seed: See `LrfPolicy`; one row's columns are chosen per batch.
    """

    name: ClassVar[str] = "ucb-e-lrf"

    def __init__(
        self,
        *,
        eta: float = 5.0,
        warmup: float = 0.05,
        rank: int = 1,
        members: int = 64,
        drop: float = 0.05,
        batch: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(rank=rank, members=members, drop=drop, batch=batch, seed=seed)
        if eta < 0 or not 0 < warmup <= 1:
            raise BadInputError(
                f"policy '{self.name}' needs eta >= 0 and 0 < warmup <= 1, got {eta:g}, {warmup:g}"
            )
        self.eta = eta
        self.warmup = warmup

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"eta": self.eta, "warmup": self.warmup, **super().params()}

    def _select(self, state: PolicyState, n: int) -> Selection:
        blind = np.isnan(state.scores).all()  # nothing to fit: more uniform cells, as in the warm-up
        first = _uniform_cells(state, n if blind else min(n, self._warmup_left(state)))
        if len(first) == n or blind:
            return first
        return _joined([first, *self._pull(state, first, n - len(first))])

    def _warmup_left(self, state: PolicyState) -> int:
        """Cells that the warm-up still lacks."""
        taken = ~np.isnan(state.scores) | state.pending
        meant = int(np.ceil(self.warmup * (taken | state.available).sum()))
        return max(0, meant - int(taken.sum()))

    def _pull(self, state: PolicyState, taken: Selection, n: int) -> list[Selection]:
        """Batches of one row each, n cells in all."""
        completion = _Completion.of(self.model, state)
        candidates = state.candidates
        _close(candidates, completion, taken)
        empty = np.asarray(~(~np.isnan(state.scores) | state.pending).any(axis=1))
        batches: list[Selection] = []
        while n > 0 and candidates.any():
            bounds = completion.row_means + self.eta * completion.row_spread()
            bounds[empty] = np.inf
            bounds[~candidates.any(axis=1)] = -np.inf
            tied = tied_best(bounds)
            row = int(state.rng.choice(tied))
            batch = self._columns(state, completion, row, candidates[row], min(self.batch, n))
            batch.probability[0] /= len(tied)
            _close(candidates, completion, batch)
            empty[row] = False
            batches.append(batch)
            n -= len(batch)
        return batches

    def _columns(
        self, state: PolicyState, completion: _Completion, row: int, open_: NDArray[np.bool_], n: int
    ) -> Selection:
        """The n open columns of largest R, ties at random."""
        columns = state.rng.permutation(np.flatnonzero(open_))
        columns = columns[np.argsort(-completion.spread[row, columns], kind="stable")]
        spread = completion.spread[row, columns]
        equals = np.searchsorted(-spread, -spread[:n], side="right") - np.arange(len(spread[:n]))
        return Selection.of(row, columns[:n], probability=1.0 / equals, gain=spread[:n])


class UcbELrfScoreOnlyPolicy(UcbELrfPolicy):
    """UCB-E-LRF, score only (Zhou et al., algorithm 6): the row as UCB-E-LRF, then a uniform column of it.

    Args:
        eta, warmup, rank, members, drop, batch, seed: See `UcbELrfPolicy`.
    """

    name: ClassVar[str] = "ucb-e-lrf-score-only"

    def _columns(
        self, state: PolicyState, completion: _Completion, row: int, open_: NDArray[np.bool_], n: int
    ) -> Selection:
        columns = state.rng.permutation(np.flatnonzero(open_))
        probability = 1.0 / (len(columns) - np.arange(len(columns)))
        return Selection.of(row, columns[:n], probability=probability[:n])


@dataclass
class _Completion:
    """The state's matrix completed by the ensemble.

    Attributes:
        fit: The ensemble.
        weights: (R, N) weight of each cell in its row's score; 0 where the score is known, in `unknown`.
        row_means: (R,) score of each row, known and predicted (equation 2).
        spread: (R, N) members' standard deviation (equation 4); 0 where known, pending or chosen.
    """

    fit: LowRankFit
    weights: NDArray[np.float64]
    unknown: NDArray[np.float64]
    row_means: NDArray[np.float64]
    spread: NDArray[np.float64]

    @classmethod
    def of(cls, model: LowRankEnsemble, state: PolicyState) -> _Completion:
        fit = model.fit(state.scores)
        weights = row_weights(state)
        seen = ~np.isnan(state.scores)
        filled = np.where(seen, state.scores, fit.mean)
        means = (weights * filled).sum(axis=1)
        spread = np.where(seen | state.pending, 0.0, fit.spread)
        return cls(fit, weights, np.where(seen, 0.0, weights), means, spread)

    def row_spread(self) -> NDArray[np.float64]:
        """(R,) weighted mean of R over the columns."""
        total: NDArray[np.float64] = np.einsum("rn,rn->r", self.weights, self.spread)
        return total

    def row_std(self) -> NDArray[np.float64]:
        """(R,) standard deviation of each row's score."""
        members = self.fit.row_scores(self.unknown).std(axis=1) * self.fit.scale
        noise = self.fit.noise * (self.unknown**2).sum(axis=1)
        std: NDArray[np.float64] = np.sqrt(members**2 + noise)
        return std


def _close(candidates: NDArray[np.bool_], completion: _Completion, chosen: Selection) -> None:
    candidates[chosen.rows, chosen.columns] = False
    completion.spread[chosen.rows, chosen.columns] = 0.0


def _uniform_cells(state: PolicyState, n: int) -> Selection:
    if n == 0:
        return Selection.of(0, [])
    rows, columns = np.nonzero(state.candidates)
    left = len(rows)
    drawn = state.rng.permutation(left)[:n]
    return Selection.of(rows[drawn], columns[drawn], probability=1.0 / (left - np.arange(len(drawn))))


def _joined(parts: list[Selection]) -> Selection:
    return Selection(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.probability for part in parts]),
        np.concatenate([part.gain for part in parts]),
    )
