"""Uniform cells, rows judged by the mean of their known scores."""

from __future__ import annotations

from typing import Any, ClassVar

from policies._base import PolicyState, Recommendation
from policies._rows import RowMeans
from policies._uniform import UniformPolicy

__all__ = ["RowMeanPolicy"]


class RowMeanPolicy(UniformPolicy):
    """Row mean imputation (Zhou et al., algorithm 3): the baseline of the objective "best".

    Args:
        batch: Cells to choose at once; any number gives the same law.
        seed: Unused; kept for the common constructor.
    """

    name: ClassVar[str] = "row-mean"
    uses_total: ClassVar[bool] = False

    def __init__(self, *, batch: int = 1024, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.batch = batch

    def params(self) -> dict[str, Any]:
        """See `Policy.params`."""
        return {"batch": self.batch, **super().params()}

    def recommend(self, state: PolicyState) -> Recommendation:
        """See `SupportsRecommendation.recommend`."""
        return RowMeans.of(state).recommendation()
