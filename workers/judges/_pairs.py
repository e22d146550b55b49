"""Judges that say which of two answers is better, asked in both orders."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from assay.errors import UsageError
from assay.statuses import Status
from workers.backends import Answer
from workers.judges._base import Ask, Call, Question, Verdict
from workers.judges._reading import json_object, no_verdict, one_line
from workers.judges._score import json_format, reference_part
from workers.judges._templates import fill, template_text

__all__ = ["PairwiseJudge", "WeightedJudge"]

RUBRIC = "Which answer is more correct, complete and helpful?"

ORDERS = ("both", "random")
TIES = ("conservative", "average")


@dataclass(frozen=True)
class _PairJudge(ABC):
    """What both have in common: the text, the orders, and how the votes become one preference.

    Attributes:
        rubric: What is compared.
        template: Name of a built-in template, or a text with {question}, {first} and {second}.
        orders: "both": asked twice, A first and B first, because judges favour a place. "random": asked once,
            in an order that prompt and answers decide; half the cost, and no flip can be seen.
    """

    rubric: str = RUBRIC
    template: str = ""
    orders: str = "both"

    compares = True

    def __post_init__(self) -> None:
        template_text(self.template, "question", "first", "second")
        if self.orders not in ORDERS:
            raise UsageError(f"unknown orders '{self.orders}'", f"known: {', '.join(ORDERS)}")

    async def judge(self, question: Question, ask: Ask) -> Verdict:
        """See `Judge.judge`."""
        votes, reasons = [], []
        for a_first in self._asked(question):
            found = self._read(await ask(self._call(question, a_first)))
            if found.value is None:
                return found
            votes.append(found.value if a_first else 1.0 - found.value)
            reasons.append(found.reason)
        reason = " | ".join(filter(None, reasons))
        return Verdict(Status.SCORED, self._settled(votes), tuple(votes), reason)

    def longest(self, question: Question) -> list[Call]:
        """See `Judge.longest`."""
        return [self._call(question, a_first) for a_first in self._asked(question)]

    def usual(self, question: Question) -> list[Call]:
        """See `Judge.usual`."""
        return self.longest(question)

    def _asked(self, question: Question) -> list[bool]:
        """Whether A comes first, for each call."""
        if self.orders == "both":
            return [True, False]
        content = "\x1f".join([question.key, question.text, question.answer, question.other or ""])
        return [hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()[0] % 2 == 0]

    def _call(self, question: Question, a_first: bool) -> Call:
        shown = [question.answer, question.other or ""]
        first, second = shown if a_first else reversed(shown)
        values = {
            "rubric": self.rubric,
            "question": question.text,
            "reference": reference_part(question),
            "first": first,
            "second": second,
        }
        return Call(fill(template_text(self.template), values), self._parameters())

    def _settled(self, votes: list[float]) -> float:
        return sum(votes) / len(votes)

    @abstractmethod
    def _parameters(self) -> dict[str, Any]: ...

    @abstractmethod
    def _read(self, reply: Answer) -> Verdict:
        """The verdict with the preference for the answer shown first as its value."""


@dataclass(frozen=True)
class PairwiseJudge(_PairJudge):
    """Says "first", "second" or "tie" in each order.

    Attributes:
        ties: "conservative": a preference only where both orders name the same winner, else a tie (as in
            MT-Bench, Zheng et al. 2023). "average": the mean of both votes; a win and a tie are 0.75.
        structured: Ask for a JSON schema (an endpoint that refuses it is asked without).
    """

    template: str = "pairwise-v1"
    ties: str = "conservative"
    structured: bool = True

    VERDICTS: ClassVar[dict[str, float]] = {"first": 1.0, "second": 0.0, "tie": 0.5}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ties not in TIES:
            raise UsageError(f"unknown tie rule '{self.ties}'", f"known: {', '.join(TIES)}")

    def _parameters(self) -> dict[str, Any]:
        if not self.structured:
            return {}
        better = {"type": "string", "enum": list(self.VERDICTS)}
        return {
            "response_format": json_format("comparison", {"reason": {"type": "string"}, "better": better})
        }

    def _read(self, reply: Answer) -> Verdict:
        wrong = no_verdict(reply)
        if wrong is not None:
            return wrong
        found = json_object(reply.text) or {}
        better = found.get("better")
        if not isinstance(better, str) or better.strip().lower() not in self.VERDICTS:
            return _malformed("it names neither 'first', 'second' nor 'tie' under 'better'")
        value = self.VERDICTS[better.strip().lower()]
        return Verdict(Status.SCORED, value, reason=one_line(found.get("reason", "")))

    def _settled(self, votes: list[float]) -> float:
        if self.ties == "average":
            return super()._settled(votes)
        return votes[0] if len(set(votes)) == 1 else 0.5


@dataclass(frozen=True)
class WeightedJudge(_PairJudge):
    """Weighs the two by the probabilities of the verdict's token (AlpacaEval 2.0, Dubois et al. 2024).

    The value is p(m) / (p(m) + p(M)) over the first token's alternatives, averaged over the orders; a letter
    that is not among them has probability 0. Where the endpoint gives no log-probabilities, the letter that
    was replied counts, as 1 or 0. (AlpacaEval itself asks once, in random order: orders = "random".)

    Attributes:
        max_tokens: Longest reply; a letter needs one token.
        alternatives: So many of the most probable tokens are asked for (the protocol allows 20).
    """

    template: str = "weighted-v1"
    max_tokens: int = 4
    alternatives: int = 5

    LETTERS: ClassVar[tuple[str, str]] = ("m", "M")

    def _parameters(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "logprobs": True, "top_logprobs": self.alternatives}

    def _read(self, reply: Answer) -> Verdict:
        wrong = no_verdict(reply, may_be_cut=True)
        if wrong is not None:
            return wrong
        weight = _weight(reply.first_logprobs, self.LETTERS) if reply.first_logprobs else None
        if weight is not None:
            return Verdict(Status.SCORED, weight, reason=f"weight {weight:.4f}")
        said = re.match(r"\W*([mM])\b", reply.text)
        if said is None:
            return _malformed("it is neither m nor M")
        return Verdict(Status.SCORED, float(said.group(1) == "m"), reason=said.group(1))


def _weight(logprobs: Mapping[str, float], letters: tuple[str, str]) -> float | None:
    """Share of the first letter in the probability of both; None where neither is among the tokens."""
    p = [sum(math.exp(lp) for token, lp in logprobs.items() if token.strip() == letter) for letter in letters]
    return p[0] / sum(p) if sum(p) > 0 else None


def _malformed(problem: str) -> Verdict:
    return Verdict(Status.MALFORMED, reason=problem)
