"""Cells for the quantiles of a distribution of scores: rows that may stand at a quantile come first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from estimators import SupportsLinearization
from policies._base import Policy, PolicyState, Selection
from policies._row_design import choose_greedily, row_designs

__all__ = ["QuantileVariancePolicy"]

DRAWS = 200
SHARED = 0.25  # of the weight that all rows get alike, so that none is given up on a wrong first look


class QuantileVariancePolicy(Policy):
    """Expected variance reduction of the rows' scores, weighted by how likely each row stands at a quantile.

    Each row's score is normal with the moments of the estimator, linearised at what is known of the row. A
    quantile is the score of the row with its rank; the weight of a row is the mean over the quantiles of its
    probability of having that rank (from draws with the estimator's moments), mixed with equal weights. A
    cell's gain is the row's weight times Cov(score, y_j)^2 / Var(y_j), per cost, as in expected-variance-
    reduction.

    Args:
        quantiles: Quantiles asked for, in (0, 1].
        batch: Cells chosen before the ranks are looked at again.
        seed: Unused; kept for the common constructor.
    """

    name: ClassVar[str] = "quantile-variance"
    needs_estimator: ClassVar[bool] = True
    uses_total: ClassVar[bool] = False
    design: ClassVar[str] = "variance-reduction"

    def __init__(
        self,
        *,
        quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        batch: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        if not quantiles or any(not 0 < q <= 1 for q in quantiles) or batch < 1:
            raise BadInputError(
                f"quantiles lie above 0 and at most at 1, batch is 1 or more, got {quantiles}"
            )
        self.quantiles = list(quantiles)
        self.batch = batch

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"quantiles": self.quantiles, "batch": self.batch, **super().params()}

    def _select(self, state: PolicyState, n: int) -> Selection:
        estimator = state.estimator
        if not isinstance(estimator, SupportsLinearization):
            raise BadInputError(
                f"policy '{self.name}' needs an estimator that can be linearised",
                "use mirt or linear-gaussian, or the policy balanced",
            )
        designs = row_designs(estimator.linearize(state.scores), state)
        weight = self._row_weights(state)
        return choose_greedily(
            state, n, lambda i: weight[i] * designs[i].score_gains(), lambda i, j: designs[i].take(j)
        )

    def _row_weights(self, state: PolicyState) -> NDArray[np.float64]:
        """(R,) weights summing to R; the draws' seed is fixed, so that the choice is deterministic."""
        assert state.estimator is not None
        r = len(state.scores)
        believed = state.estimator.benchmark_score(state.scores)
        noise = np.random.default_rng(self.seed).standard_normal((DRAWS, r))
        order = np.argsort(believed.mean + believed.std * noise, axis=1)
        places = np.ceil(np.array(self.quantiles) * r - 1e-9).astype(np.intp) - 1
        standing = np.bincount(order[:, np.maximum(places, 0)].reshape(-1), minlength=r)
        share = standing / standing.sum()
        return np.asarray(SHARED + (1.0 - SHARED) * r * share)
