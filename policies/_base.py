"""What every policy is: choose the cells to acquire next, from what is known so far.

Call order: construct (with a seed), `prepare(history, estimator)` once per estimator version, then
`select(state, n)` as often as wanted. Shapes: R rows of the study, N prompts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from assay.errors import BadInputError
from assay.matrix import BoolArray, ScoreMatrix
from estimators import Estimator

__all__ = [
    "Policy",
    "PolicyState",
    "Recommendation",
    "Selection",
    "SupportsRecommendation",
    "SupportsReplay",
    "SupportsTraining",
]


@dataclass(frozen=True)
class PolicyState:
    """Everything that a policy may look at when it chooses.

    Attributes:
        scores: (R, N) scores known of the study's rows; NaN = unknown.
        pending: (R, N) True where a score was asked for and has not arrived; never to be asked again.
        available: (R, N) False where a cell cannot be bought (parked, refused, outside the study).
        cost: (R, N) expected cost of each cell, > 0, in any one unit (1.0 each where costs are equal).
        weights: (N,) prompt weights, summing to 1.
        dataset_index: (N,) dataset of each prompt.
        estimator: The fitted estimator, or None.
        rng: Seeded generator; the only source of randomness in `select`.
        total: How many cells the study means to acquire in all, known, pending and to come; 0 = not known.
        embeddings: (N, d) prompt vectors, or None.
        cold: (N,) True where a prompt has no history to choose it by; None = all have one.
        row_features: (R, p) covariates of the rows' templates, or None.
    """

    scores: NDArray[np.float64]
    pending: BoolArray
    available: BoolArray
    cost: NDArray[np.float64]
    weights: NDArray[np.float64]
    dataset_index: NDArray[np.intp]
    estimator: Estimator | None
    rng: np.random.Generator
    total: int = 0
    embeddings: NDArray[np.float32] | None = None
    cold: BoolArray | None = None
    row_features: NDArray[np.float64] | None = None

    @property
    def candidates(self) -> BoolArray:
        """(R, N) True where a cell may be chosen: unknown, not pending, available."""
        return np.isnan(self.scores) & ~self.pending & self.available


@dataclass(frozen=True)
class Selection:
    """Chosen cells, in the order of choice (k <= n of them).

    Attributes:
        rows: (k,) row index of each cell.
        columns: (k,) prompt index of each cell.
        probability: (k,) probability with which the cell was drawn given those before it; NaN where the
            choice was deterministic.
        gain: (k,) what the policy expected of the cell, in the policy's own unit; NaN where it has none.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    probability: NDArray[np.float64]
    gain: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(
        cls,
        rows: Any,
        columns: Any,
        *,
        probability: Any = np.nan,
        gain: Any = np.nan,
    ) -> Selection:
        """Build from sequences or scalars (scalars are repeated)."""
        columns = np.asarray(columns, dtype=np.intp).reshape(-1)
        k = len(columns)
        return cls(
            np.broadcast_to(np.asarray(rows, dtype=np.intp), (k,)).copy(),
            columns,
            np.broadcast_to(np.asarray(probability, dtype=np.float64), (k,)).copy(),
            np.broadcast_to(np.asarray(gain, dtype=np.float64), (k,)).copy(),
        )


@dataclass(frozen=True)
class Recommendation:
    """What a policy believes of the study's rows.

    Attributes:
        mean: (R,) expected benchmark score of each row.
        std: (R,) standard deviation of the benchmark score.
        probability_best: (R,) probability that the row is the best, summing to 1.
        kind: What the means rest on: "sampling" (known scores only) or "predicted" (a model fills the rest).
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    probability_best: NDArray[np.float64]
    kind: str = "sampling"

    @property
    def best(self) -> int:
        """The row to name: the largest mean, the first of equals."""
        return int(self.mean.argmax())


@runtime_checkable
class SupportsRecommendation(Protocol):
    """A policy that can say which row is the best: what the objective "best" needs.

    Attributes:
        batch: Cells that the policy wants to choose at once; `select` takes any number.
    """

    batch: int

    def recommend(self, state: PolicyState) -> Recommendation:
        """Judge the rows by what is known; draws nothing from `state.rng`."""
        ...


@runtime_checkable
class SupportsReplay(Protocol):
    """A policy with a faster way to replay a study whose answers are all at hand.

    Attributes:
        batch: Cells that the policy wants to choose at once.
    """

    batch: int

    def replay(self, state: PolicyState, answers: NDArray[np.float64], n: int) -> Selection:
        """Choose n cells, batch by batch, learning each answer before the next choice.

        Must choose the cells that `select(state, batch)` in a loop would choose with the same generator.

        Args:
            state: Where the replay starts.
            answers: (R, N) complete scores; NaN only where a cell is not available.
            n: Cells to choose.
        """
        ...


@runtime_checkable
class SupportsTraining(Protocol):
    """A policy that is learned from a history and kept as a version, like an estimator.

    `prepare` trains it where nothing was restored before.
    """

    def train(
        self,
        history: ScoreMatrix,
        estimator: Estimator,
        *,
        warm_start: Self | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        """Learn from the history's rows; a checkpoint in the folder is gone on from."""
        ...

    def save(self, folder: Path) -> None:
        """Write what was learned as JSON and safetensors."""
        ...

    def restore(self, folder: Path) -> None:
        """Take back what `save` wrote."""
        ...

    def findings(self) -> dict[str, Any]:
        """What people may want to know of the training (JSON-able)."""
        ...


class Policy(ABC):
    """Base of all policies.

    A policy keeps nothing between calls of `select` but what `prepare` computed: the same state (and the same
    generator state inside it) gives the same answer, in this process or another.

    Attributes:
        name: Registered kebab-case name.
        needs_estimator: Whether `state.estimator` must be given.
        uses_total: Whether choices depend on `state.total`. Where they do not, a backtest reads every budget
            off one run; a policy that declares it wrongly is measured wrongly, so the default is True.
        design: The simulated design ("random" or "variance-reduction") under which conformal intervals for
            scores that this policy acquires are calibrated.
        uses_embeddings: Whether the prompts' vectors are looked at (they are only made where they are).
        row_features: Which covariates of the rows' templates are looked at: "embedding", "discrete" or none.
        needs_no_history: Whether it chooses among prompts that nobody has answered as among the others; where
            not, a share of the study is drawn among them for it (`MixedPolicy`).
    """

    name: ClassVar[str]
    needs_estimator: ClassVar[bool] = False
    uses_total: ClassVar[bool] = True
    uses_embeddings: ClassVar[bool] = False
    row_features: ClassVar[str] = ""
    design: ClassVar[str] = "random"
    needs_no_history: ClassVar[bool] = False

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def params(self) -> dict[str, Any]:
        """Constructor arguments, JSON-able, from which an equal policy can be built."""
        return {"seed": self.seed}

    def prepare(self, history: ScoreMatrix, estimator: Estimator | None) -> None:  # noqa: B027
        """Compute what depends only on the history and the fitted estimator; default nothing."""

    def select(self, state: PolicyState, n: int) -> Selection:
        """Choose at most n cells among `state.candidates`, never the same cell twice.

        Fewer than n are returned only where fewer are left or the policy sees no use in more.

        Raises:
            BadInputError: n is negative, or the policy needs an estimator and the state has none.
        """
        if n < 0:
            raise BadInputError(f"cannot select {n} cells")
        if self.needs_estimator and state.estimator is None:
            raise BadInputError(f"policy '{self.name}' needs an estimator", "choose one with --estimator")
        if n == 0 or not state.candidates.any():
            return Selection.of(0, [])
        return self._select(state, n)

    def select_each(self, states: Sequence[PolicyState], n: int) -> list[Selection]:
        """`select` for many independent studies; the same answers as one call each.

        Policies that ask the estimator override it to ask once for all states, which is much faster.
        """
        return [self.select(state, n) for state in states]

    @abstractmethod
    def _select(self, state: PolicyState, n: int) -> Selection:
        """Choose at most n >= 1 cells; at least one candidate exists."""
