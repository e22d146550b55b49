"""What every judge is: it reads answers and says how good one is, or which of two is better."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from assay.statuses import Status
from workers.backends import Answer

__all__ = ["Ask", "Call", "Judge", "JudgeFactory", "Question", "Usage", "Verdict"]


@dataclass(frozen=True)
class Question:
    """What is to be judged.

    Attributes:
        key: The prompt's id; with `text` and the answers it decides every random choice.
        text: The prompt.
        answer: The answer to be judged; in a comparison the answer of A.
        other: In a comparison the answer of B, else None.
        reference: A good answer to hold it against, where the prompt brings one.
    """

    key: str
    text: str
    answer: str
    other: str | None = None
    reference: str | None = None


@dataclass(frozen=True)
class Call:
    """One call to the judge's model: its text, and parameters beyond those of the model's description."""

    text: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """What a judgement took, over all its calls."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Verdict:
    """What a judge says of a question.

    Attributes:
        status: SCORED, or why there is no value: MALFORMED, REFUSED, TRUNCATED or EMPTY.
        value: In [0, 1]: the score of the answer; in a comparison the preference for A (1 = A, 0 = B,
            0.5 = tie, anything between where the judge weighs). None unless the status is SCORED.
        votes: In a comparison the preference for A in each order asked, first with A shown first.
        reason: The judge's own words, or what was wrong with them; one line, cut to a few hundred characters.
        usage: What it took; filled in by whoever made the calls.
    """

    status: Status
    value: float | None = None
    votes: tuple[float, ...] = ()
    reason: str = ""
    usage: Usage = Usage()

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.status is Status.SCORED

    @property
    def preference(self) -> str | None:
        """Which is better: "A", "B" or "tie"; None where there is no value."""
        if self.value is None:
            return None
        return "tie" if self.value == 0.5 else "A" if self.value > 0.5 else "B"

    @property
    def flipped(self) -> bool | None:
        """Whether the judge preferred the same place in both orders; None where only one was asked."""
        if len(self.votes) < 2:
            return None
        first, second = self.votes
        return (first - 0.5) * (second - 0.5) < 0


class Ask(Protocol):
    """Puts one text to the judge's model."""

    def __call__(self, call: Call) -> Awaitable[Answer]:
        """Ask it; raises CallError where no answer came."""
        ...


class Judge(Protocol):
    """A judge, built from its pinned parameters; keeps nothing between questions.

    Attributes:
        compares: Whether it says which of two answers is better.
    """

    compares: bool

    async def judge(self, question: Question, ask: Ask) -> Verdict:
        """Judge a question.

        Raises:
            CallError: A call brought no answer.
        """
        ...

    def longest(self, question: Question) -> list[Call]:
        """Every call that the question can lead to, each at its longest: what must be reserved."""
        ...

    def usual(self, question: Question) -> list[Call]:
        """The calls that the question usually leads to: what it will probably cost."""
        ...


class JudgeFactory(Protocol):
    """Builds a judge from its own parameters; raises AssayError where they cannot work."""

    def __call__(self, **params: Any) -> Judge:
        """Build it."""
        ...
