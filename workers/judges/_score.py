"""A judge that grades one answer against a rubric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from assay.errors import UsageError
from assay.statuses import Status
from workers.backends import Answer
from workers.judges._base import Ask, Call, Question, Verdict
from workers.judges._reading import json_object, no_verdict, one_line
from workers.judges._templates import fill, template_text

__all__ = ["ScoreJudge"]

RUBRIC = "Is the answer correct, complete and helpful?"

#: So much of a reply that cannot be read is quoted when the judge is asked to mend it.
QUOTED_CHARACTERS = 1000

REPAIR = """{asked}

Your reply to this was:
<reply>
{reply}
</reply>
It cannot be used: {problem}. Reply again with the JSON object alone."""


@dataclass(frozen=True)
class ScoreJudge:
    """Grades an answer from `low` to `high`, which become 0 and 1.

    The reply is asked for as JSON of a given schema. One that cannot be read is shown to the judge once, to
    be mended; what then still cannot be read is no score.

    Attributes:
        rubric: What is graded.
        template: Name of a built-in template, or a text with {question} and {answer}.
        low: The worst grade.
        high: The best grade.
        structured: Ask for the schema (an endpoint that refuses it is asked without).
        repairs: How often a reply may be mended, 0 or 1.
    """

    rubric: str = RUBRIC
    template: str = "score-v1"
    low: int = 1
    high: int = 10
    structured: bool = True
    repairs: int = 1

    compares = False

    def __post_init__(self) -> None:
        template_text(self.template, "question", "answer")
        if not self.low < self.high:
            raise UsageError(
                f"a scale from {self.low} to {self.high} has no grades", "low must be below high"
            )
        if self.repairs not in (0, 1):
            raise UsageError(f"repairs must be 0 or 1, not {self.repairs}")

    async def judge(self, question: Question, ask: Ask) -> Verdict:
        """See `Judge.judge`."""
        call = self._call(question)
        verdict, reply = self._read(await ask(call))
        if verdict.status is not Status.MALFORMED or not self.repairs:
            return verdict
        return self._read(await ask(self._repair(call, reply, verdict.reason)))[0]

    def longest(self, question: Question) -> list[Call]:
        """See `Judge.longest`."""
        call = self._call(question)
        widest = self._repair(call, "\U00010000" * QUOTED_CHARACTERS, "x" * 200)
        return [call, widest][: 1 + self.repairs]

    def usual(self, question: Question) -> list[Call]:
        """See `Judge.usual`."""
        return [self._call(question)]

    def _call(self, question: Question) -> Call:
        values = {
            "rubric": self.rubric,
            "question": question.text,
            "answer": question.answer,
            "reference": reference_part(question),
            "low": self.low,
            "high": self.high,
        }
        return Call(fill(template_text(self.template), values), self._format())

    def _format(self) -> dict[str, Any]:
        if not self.structured:
            return {}
        grade = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"response_format": json_format("grade", {"reason": {"type": "string"}, "score": grade})}

    def _repair(self, call: Call, reply: str, problem: str) -> Call:
        text = fill(REPAIR, {"asked": call.text, "reply": reply[:QUOTED_CHARACTERS], "problem": problem})
        return Call(text, call.parameters)

    def _read(self, reply: Answer) -> tuple[Verdict, str]:
        return no_verdict(reply) or self._graded(reply.text), reply.text

    def _graded(self, text: str) -> Verdict:
        found = json_object(text)
        if found is None:
            return _malformed("it holds no JSON object")
        score = found.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return _malformed("it holds no number under 'score'")
        if not self.low <= score <= self.high:
            return _malformed(f"its score {score:g} is outside {self.low} to {self.high}")
        value = (score - self.low) / (self.high - self.low)
        return Verdict(Status.SCORED, value, reason=one_line(found.get("reason", "")))


def json_format(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """The `response_format` that asks for an object of exactly these properties."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


def reference_part(question: Question) -> str:
    """The reference with its tags, or nothing where there is none."""
    if question.reference is None:
        return ""
    return f"\n<reference>\n{question.reference}\n</reference>\n"


def _malformed(problem: str) -> Verdict:
    return Verdict(Status.MALFORMED, reason=problem)
