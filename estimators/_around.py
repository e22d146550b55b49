"""An estimator around another one, which answers unless the outer one knows better."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import FloatArray
from estimators._base import (
    Estimator,
    Linearization,
    Prediction,
    ScoreEstimate,
    SupportsLinearization,
    SupportsPromptFeatures,
    check_observed,
)

__all__ = ["EstimatorAround"]


class EstimatorAround(Estimator):
    """Passes every question on to `inner`; subclasses fit it and override what they improve."""

    @property
    @abstractmethod
    def inner(self) -> Estimator:
        """The fitted estimator that answers."""

    def predict(self, observed: FloatArray) -> Prediction:
        """See `Estimator.predict`; the inner one's."""
        observed = check_observed(self, observed)
        return self.inner.predict(observed)

    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """See `Estimator.sample`; the inner one's."""
        observed = check_observed(self, observed)
        return self.inner.sample(observed, n, rng)

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """See `Estimator.benchmark_score`; the inner one's."""
        observed = check_observed(self, observed)
        return self.inner.benchmark_score(observed)

    def linearize(self, observed: FloatArray) -> Linearization:
        """See `SupportsLinearization`; the inner one's.

        Raises:
            BadInputError: The inner one cannot be linearised.
        """
        observed = check_observed(self, observed)
        inner = self.inner
        if not isinstance(inner, SupportsLinearization):
            raise BadInputError(f"estimator '{inner.name}' cannot be linearised", "choose another one")
        return inner.linearize(observed)

    def candidates_per_choice(self) -> int:
        """See `Estimator.candidates_per_choice`; the inner one's."""
        return self.inner.candidates_per_choice()

    def prompt_features(self) -> NDArray[np.float64]:
        """See `SupportsPromptFeatures`; the inner one's.

        Raises:
            BadInputError: The inner one has none.
        """
        inner = self.inner
        if not isinstance(inner, SupportsPromptFeatures):
            raise BadInputError(f"estimator '{inner.name}' has no prompt features", "choose another one")
        return inner.prompt_features()
