"""What every estimator is: learn from history rows, then predict what was not acquired.

Shapes: M history methods, N prompts, B partly observed rows, S joint samples, D latent dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError, NotFittedError
from assay.matrix import FloatArray, ScoreMatrix

__all__ = [
    "Estimator",
    "Linearization",
    "Prediction",
    "ScoreEstimate",
    "SupportsLinearization",
    "SupportsPromptFeatures",
    "SupportsRowFeatures",
    "SupportsScoreDraws",
    "check_observed",
]


@dataclass(frozen=True)
class Prediction:
    """Predicted scores of B rows.

    Attributes:
        mean: (B, N) expected score; the acquired score itself where one was given.
        variance: (B, N) predictive variance of the score; 0 where it was given.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


@dataclass(frozen=True)
class ScoreEstimate:
    """Estimated benchmark scores of B rows.

    Attributes:
        mean: (B,) estimated benchmark score.
        std: (B,) standard deviation of the benchmark score under the estimator.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]


@dataclass(frozen=True)
class Linearization:
    """A row's scores as a linear-Gaussian model around the current posterior.

    y_j = mean_j + loading_j . u + e_j;
    u ~ N(0, covariance) is what is still unknown of the method; e_j ~ N(0, noise_j) belongs to the prompt.

    Attributes:
        mean: (B, N) expected score.
        loadings: (B, N, D), or (N, D) where all rows share it, derivative of the score by the latent.
        covariance: (B, D, D) posterior covariance of the latent.
        noise: (B, N) variance of a score that the latent does not explain (p (1 - p) for binary scores).
    """

    mean: NDArray[np.float64]
    loadings: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise: NDArray[np.float64]


@runtime_checkable
class SupportsLinearization(Protocol):
    """An estimator whose posterior can be linearised: what expected-variance policies need."""

    def linearize(self, observed: FloatArray) -> Linearization:
        """Linearise around the posterior of each of the B rows of `observed` (B, N)."""
        ...


@runtime_checkable
class SupportsPromptFeatures(Protocol):
    """An estimator that represents each prompt by a vector (item parameters, encodings)."""

    def prompt_features(self) -> NDArray[np.float64]:
        """(N, k) learned representation of the prompts."""
        ...


@runtime_checkable
class SupportsRowFeatures(Protocol):
    """An estimator that may be told what the rows' templates look like.

    Attributes:
        row_features: Which covariates it takes: "embedding", "discrete", "effects" or "" (none).
    """

    row_features: ClassVar[str]

    def with_rows(self, features: FloatArray) -> Estimator:
        """The same estimator for R rows with these covariates (R, p)."""
        ...


@runtime_checkable
class SupportsScoreDraws(Protocol):
    """An estimator that draws the benchmark scores of all rows together."""

    def score_draws(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """(n, B) joint draws of the benchmark scores of the B rows of `observed` (B, N)."""
        ...


class Estimator(ABC):
    """Base of all estimators.

    A constructor only stores hyper-parameters. `fit` validates, learns and returns self; what it learned ends
    in an underscore. Rows that are then predicted need not be among the history. All methods are free of
    side effects after `fit`, so that one fitted estimator may serve many threads.

    Subclasses implement `_fit`, `predict`, `sample`, `_arrays` and `_restore`, and override
    `benchmark_score` where they have a closed form.
    """

    name: ClassVar[str]

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self.n_prompts_: int | None = None
        self.weights_: NDArray[np.float64] = np.empty(0)
        self.dataset_index_: NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def params(self) -> dict[str, Any]:
        """Hyper-parameters (JSON-able): `type(self)(**params)` builds an equal unfitted estimator."""
        return {"seed": self.seed}

    def settled_params(self) -> dict[str, Any]:
        """`params` with what `fit` chose in place of "auto": a refit need not choose again."""
        return self.params()

    def alternatives(self) -> list[dict[str, Any]]:
        """Settled parameters worth comparing where another estimator is put around this one; own ones first.

        What is best alone need not be best under a correction.
        """
        return [self.settled_params()]

    def findings(self) -> dict[str, Any]:
        """What a fit found out that people may want to read (JSON-able), such as what was chosen and why."""
        return {}

    def settled(self) -> Estimator:
        """An unfitted estimator that fits as this one did, without choosing again what "auto" stands for."""
        return type(self)(**self.settled_params())

    def candidates_per_choice(self) -> int:
        """Of how many candidates, drawn at random, a design should choose each prompt; 0 = of all.

        The largest of many expected gains is partly luck where gains were learned from few methods.
        """
        return 0

    def affordable_to_refit(self) -> bool:
        """Whether refitting on five parts of the history (cross-fitting) is a matter of seconds."""
        return True

    def fit(self, history: ScoreMatrix, *, warm_start: Self | None = None) -> Self:
        """Learn from the history rows.

        Args:
            history: (M, N) scores, entries may be missing.
            warm_start: A fitted estimator of the same class to start from; rows, columns and scores may have
                been added since, columns only behind those that it knows. None starts afresh.

        Raises:
            BadInputError: The history holds no score at all, or is not a valid matrix.
        """
        history.check()
        if self.needs_history and not history.observed.any():
            raise BadInputError(
                f"estimator '{self.name}' needs history, but no score is present",
                "import scores of other methods first, or use the estimator 'aggregate'",
            )
        self.n_prompts_ = history.n_prompts
        self.weights_ = history.weights.astype(np.float64)
        self.dataset_index_ = history.dataset_index.astype(np.intp)
        self._fit(history, warm_start)
        return self

    #: Whether `fit` refuses a history without any score.
    needs_history: ClassVar[bool] = True

    #: Whether the prompts' vectors are looked at (they are only made where they are).
    uses_embeddings: ClassVar[bool] = False

    #: What kind of interval `benchmark_score` gives: "predicted" (a model's posterior) or "sampling".
    interval_kind: ClassVar[str] = "predicted"

    #: Whether the rows of one call inform each other (else each is predicted by itself).
    joint: ClassVar[bool] = False

    #: Which covariates of the rows' templates are looked at: "embedding", "discrete", "effects" (on models
    #: that were studied before) or none.
    row_features: ClassVar[str] = ""

    @abstractmethod
    def _fit(self, history: ScoreMatrix, warm_start: Self | None) -> None:
        """Learn from a checked history."""

    @abstractmethod
    def predict(self, observed: FloatArray) -> Prediction:
        """Predict B partly observed rows.

        Args:
            observed: (B, N) acquired scores, NaN = not acquired; a row may be all NaN.

        Raises:
            NotFittedError: `fit` was not called.
            BadInputError: Wrong width, infinite values, or scores outside [0, 1].
        """

    @abstractmethod
    def sample(self, observed: FloatArray, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """(B, n, N) joint samples of complete rows; acquired entries keep their value."""

    def benchmark_score(self, observed: FloatArray) -> ScoreEstimate:
        """Benchmark score of each of B rows, acquired and predicted (default: by 256 joint samples)."""
        observed = check_observed(self, observed)
        mean = np.clip(self.predict(observed).mean @ self.weights_, 0.0, 1.0)
        draws = self.sample(observed, 256, np.random.default_rng(self.seed)) @ self.weights_
        return ScoreEstimate(mean, draws.std(axis=1))

    @abstractmethod
    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned, as named arrays (besides weights and dataset index)."""

    @abstractmethod
    def _restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take back what `_arrays` gave."""

    def save(self, folder: Path) -> None:
        """Write the fitted estimator to a folder as JSON and safetensors (no pickle)."""
        from estimators._artifact import save_estimator

        save_estimator(self, folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read an estimator of this class back from `save`'s folder; the content's checksum is verified."""
        from estimators._artifact import load_estimator

        loaded = load_estimator(folder)
        if not isinstance(loaded, cls):
            raise BadInputError(f"{folder} holds a {loaded.name} estimator, not {cls.name}")
        return loaded


def check_observed(estimator: Estimator, observed: FloatArray) -> NDArray[np.float64]:
    """Return `observed` as (B, N) float64, or raise what `Estimator.predict` documents."""
    if estimator.n_prompts_ is None:
        raise NotFittedError(f"estimator '{estimator.name}' is not fitted", "call fit(history) first")
    checked: NDArray[np.float64] = np.asarray(observed, dtype=np.float64)
    observed = checked
    if observed.ndim != 2 or observed.shape[1] != estimator.n_prompts_:
        raise BadInputError(
            f"observed scores must have shape (B, {estimator.n_prompts_}), got {observed.shape}"
        )
    if np.isinf(observed).any():
        raise BadInputError("an observed score is infinite", "use NaN for scores that were not acquired")
    with np.errstate(invalid="ignore"):
        if ((observed < 0) | (observed > 1)).any():
            raise BadInputError("an observed score is outside [0, 1]", "rescale the scores to [0, 1]")
    return checked
