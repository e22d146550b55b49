"""What pairs of other methods say about the prompts of a pair that nobody judged yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["PairHistory"]


@dataclass(frozen=True)
class PairHistory:
    """Score rows of other methods on the same prompts; a pair's verdict there is the sign of the difference.

    Attributes:
        scores: (M, N) scores of M methods, NaN = unknown.
        described: (r,) the rows whose outputs are known.
        features: (r, N, p) text features of those outputs; None where nobody computed them.
        likeness: (r, r, N) how alike two of them are, 0 to 1; None where nobody computed it.
        left_out: Rows that must not be looked at. They stay in the arrays, so that what is computed of all
            rows once serves the histories of many pairs.
    """

    scores: NDArray[np.float64]
    described: tuple[int, ...] = ()
    features: NDArray[np.float64] | None = None
    likeness: NDArray[np.float32] | None = None
    left_out: tuple[int, ...] = ()

    def without(self, methods: Sequence[int]) -> PairHistory:
        """The same history with these rows left out, too."""
        return replace(self, left_out=tuple(sorted({*self.left_out, *map(int, methods)})))

    @property
    def kept(self) -> NDArray[np.intp]:
        """The rows that may be looked at."""
        return np.setdiff1d(np.arange(len(self.scores)), self.left_out)
