"""The common part of policies that judge each row by the mean of its known scores."""

from __future__ import annotations

from typing import Any, ClassVar

from policies._base import Policy, PolicyState, Recommendation
from policies._rows import RowMeans

__all__ = ["JudgesByRowMeans"]


class JudgesByRowMeans(Policy):
    """Recommends by row means; subclasses say which cells to choose.

    Args:
        batch: Cells to choose at once; any number gives the same law.
        seed: Unused; kept for the common constructor.
    """

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
