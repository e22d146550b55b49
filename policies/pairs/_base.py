"""What every pair policy is: it chooses the prompts on which a judge compares two methods, A and B.

Shapes: N prompts, d vector length, p text features. A verdict per prompt is +1 (A is better), -1 (B) or 0
(tie); NaN = not asked. The winning distance is P(A) - P(B), the mean verdict over all N prompts.

Call order: construct, `prepare(history)` once, then `plan(problem)` per pair. A plan gives, for every sample
size k, the k prompts to be judged, and says what follows from their verdicts. It keeps nothing of the study:
who runs it asks for the prompts of `sample(k)` that have no verdict yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.errors import UsageError
from policies.pairs._history import PairHistory

__all__ = ["PairPlan", "PairPolicy", "PairProblem", "PairVerdict"]

Floats = NDArray[np.float64]
Columns = NDArray[np.intp]


@dataclass(frozen=True)
class PairProblem:
    """Two methods that have answered N prompts.

    Attributes:
        n_prompts: N.
        first, second: (N, d) vectors of A's and B's outputs, or None where nobody looks at them.
        inputs: (N, d) vectors of the prompts, or None.
        features: (2, N, p) text features of A's and of B's outputs, or None.
        likeness: (2, r, N) how alike A's and B's outputs are to those of the r described methods of the
            history, or None.
        columns: (N,) index of each prompt in the history's columns; default the same prompts.
        rng_seed: What the plan's randomness is drawn from.
    """

    n_prompts: int
    first: NDArray[np.float32] | None = None
    second: NDArray[np.float32] | None = None
    inputs: NDArray[np.float32] | None = None
    features: Floats | None = None
    likeness: NDArray[np.float32] | None = None
    columns: Columns | None = None
    rng_seed: tuple[int, ...] = (0,)

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator: plans made twice are equal."""
        return np.random.default_rng(list(self.rng_seed))


@dataclass(frozen=True)
class PairVerdict:
    """What follows from the verdicts so far.

    Attributes:
        distance: Estimated winning distance, P(A) - P(B), in [-1, 1].
        low, high: Interval of the distance at the level asked for.
        risk: Estimated probability that naming the winner now is wrong.
        risk_kind: "heuristic", "posterior" or "anytime": what the risk may be relied on for.
        distance_kind: "biased" (towards the winner) or "sampling".
        a, b, ties: Verdicts that the estimate counts.
        favoured: The winner where more than the distance decides it (+1, -1); None = the distance's sign.
    """

    distance: float
    low: float
    high: float
    risk: float
    risk_kind: str
    distance_kind: str
    a: int
    b: int
    ties: int
    favoured: int | None = None

    @property
    def winner(self) -> int:
        """+1 = A, -1 = B, 0 = the verdicts do not say."""
        return int(np.sign(self.distance)) if self.favoured is None else self.favoured


class PairPlan(Protocol):
    """The prompts of one pair in the order, or the sets, in which a policy wants them judged."""

    def sample(self, k: int) -> Columns:
        """The k prompts (fewer only where there are fewer) whose verdicts decide at sample size k."""
        ...

    def verdict(self, verdicts: Floats, k: int, *, level: float | None = 0.95) -> PairVerdict:
        """Judge by the verdicts of `sample(k)`; verdicts of other prompts do not count.

        Args:
            verdicts: (N,) +1, -1, 0, NaN = not asked or not answered.
            k: Sample size.
            level: Level of the interval; None = no interval is wanted, which may be faster.
        """
        ...


class PairPolicy(ABC):
    """Base of all pair policies.

    Attributes:
        name: Registered kebab-case name.
        uses_vectors: Whether the outputs' vectors are looked at.
        uses_inputs: Whether the prompts' vectors are looked at.
        uses_features: Whether the outputs' text features are looked at.
        uses_history: Whether pairs of other methods are looked at.
        draws_at_random: Whether samples are random, so that success is a mean over draws.
    """

    name: ClassVar[str]
    uses_vectors: ClassVar[bool] = False
    uses_inputs: ClassVar[bool] = False
    uses_features: ClassVar[bool] = False
    uses_history: ClassVar[bool] = False
    draws_at_random: ClassVar[bool] = False

    def params(self) -> dict[str, Any]:
        """Constructor arguments, JSON-able, from which an equal policy can be built."""
        return {}

    @classmethod
    def named(cls, argument: str) -> dict[str, Any]:
        """Constructor arguments by what follows `name:`.

        Raises:
            UsageError: The policy has no such options.
        """
        raise UsageError(f"pair policy '{cls.name}' takes no options, got '{argument}'")

    def wants_outputs(self, described: int) -> bool:
        """Whether it looks at all outputs of both methods before it chooses.

        Args:
            described: Methods of the history whose outputs are known.
        """
        return self.uses_vectors or self.uses_features

    def prepare(self, history: PairHistory | None) -> None:  # noqa: B027
        """Learn from pairs of other methods; default nothing."""

    @abstractmethod
    def plan(self, problem: PairProblem) -> PairPlan:
        """Lay out one pair.

        Raises:
            BadInputError: The policy needs vectors or features that the problem does not have.
        """
