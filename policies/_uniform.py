"""Uniform random acquisition: the baseline, and the template for a new policy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from policies._base import Policy, PolicyState, Selection

__all__ = ["UniformPolicy"]


class UniformPolicy(Policy):
    """Draws cells uniformly at random, without replacement."""

    name: ClassVar[str] = "uniform"
    uses_total: ClassVar[bool] = False
    needs_no_history: ClassVar[bool] = True

    def _select(self, state: PolicyState, n: int) -> Selection:
        rows, columns = np.nonzero(state.candidates)
        left = len(rows)
        drawn = state.rng.permutation(left)[:n]
        return Selection.of(rows[drawn], columns[drawn], probability=1.0 / (left - np.arange(len(drawn))))
