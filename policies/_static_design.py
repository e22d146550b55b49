"""A design for the benchmark score's variance that does not depend on the answers."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.errors import NotFittedError
from assay.matrix import BoolArray, ScoreMatrix
from estimators import Estimator, Linearization, SupportsLinearization, make_estimator
from policies._base import Policy, PolicyState, Selection
from policies._row_design import LEAST_NOISE, RowDesign, choose_greedily

__all__ = ["StaticDesignPolicy"]

MEMORY_BYTES = 2**26


class StaticDesignPolicy(Policy):
    """Greedy for the variance of the benchmark score under a linear-Gaussian model of the history.

    Which prompts were asked decides the next one, what was answered does not: in a linear-Gaussian model the
    variance depends on the design alone. With few history methods this beats adapting. The model is the
    study's estimator where that is linear-gaussian, else one fitted to the history in `prepare`. With few
    history methods each prompt is the best of some that are drawn, so that every study gets its own.
    """

    name: ClassVar[str] = "static-design"
    uses_total: ClassVar[bool] = False
    design: ClassVar[str] = "variance-reduction"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._prior: Linearization | None = None
        self._among = 0
        self._gains: OrderedDict[bytes, NDArray[np.float64]] = OrderedDict()

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:
        """See `Policy.prepare`: a linear-Gaussian model before any answer."""
        own = estimator is not None and estimator.name == "linear-gaussian"
        model = estimator if own else make_estimator("linear-gaussian", seed=self.seed).fit(history)
        assert isinstance(model, SupportsLinearization)
        self._among = model.candidates_per_choice()
        self._prior = model.linearize(np.full((1, history.n_prompts), np.nan))
        self._gains.clear()

    def _select(self, state: PolicyState, n: int) -> Selection:
        used = ~np.isnan(state.scores) | state.pending

        def take(i: int, j: int) -> None:
            used[i, j] = True

        return choose_greedily(
            state, n, lambda i: self._gains_after(used[i], state.weights), take, among=self._among
        )

    def _gains_after(self, used: BoolArray, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N,) variance reduction by each prompt once the used ones are answered, remembered."""
        key = np.packbits(used).tobytes() + weights.tobytes()
        if key not in self._gains:
            self._gains[key] = self._design(used, weights).score_gains()
            if len(self._gains) * 8 * len(used) > MEMORY_BYTES:
                self._gains.popitem(last=False)
        return self._gains[key]

    def _design(self, used: BoolArray, weights: NDArray[np.float64]) -> RowDesign:
        if self._prior is None:
            raise NotFittedError(f"policy '{self.name}' is not prepared", "call prepare(history, ...) first")
        loadings = self._prior.loadings
        design = RowDesign(
            loadings=loadings if loadings.ndim == 2 else loadings[0],
            covariance=self._prior.covariance[0],
            noise=np.maximum(self._prior.noise[0], LEAST_NOISE),
            weights=weights.copy(),
        )
        design.take_all(used)
        return design
