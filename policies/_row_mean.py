"""Uniform cells, rows judged by the mean of their known scores."""

from __future__ import annotations

from typing import ClassVar

from policies._judges_by_row_means import JudgesByRowMeans
from policies._uniform import UniformPolicy

__all__ = ["RowMeanPolicy"]


class RowMeanPolicy(JudgesByRowMeans, UniformPolicy):
    """Row mean imputation (Zhou et al., algorithm 3): the baseline of the objective "best"."""

    name: ClassVar[str] = "row-mean"
