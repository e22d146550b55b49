"""Scorers that compare an answer's text with the prompt's target."""

from __future__ import annotations

import math
import re
import string
from typing import Any

from workers.backends import Answer
from workers.scorers._base import Unscorable

__all__ = ["ExactMatchScorer", "MultipleChoiceScorer", "NumericScorer"]

#: Finish reasons that mean the answer is whole.
COMPLETE = frozenset({"stop", "end_turn", "eos", "stop_sequence"})


class ExactMatchScorer:
    """1 where the trimmed answer equals a target; case and outer punctuation are ignored by default."""

    def __init__(self, *, ignore_case: bool = True, ignore_punctuation: bool = True) -> None:
        self._ignore_case = ignore_case
        self._ignore_punctuation = ignore_punctuation

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        given = self._normal(_usable_text(answer))
        return float(any(given == self._normal(target) for target in _targets(fields)))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        if self._ignore_punctuation:
            text = text.strip(string.punctuation + " ")
        return text.casefold() if self._ignore_case else text


class MultipleChoiceScorer:
    """1 where the answer names the target's letter.

    Taken in this order: a letter said to be the answer ("the answer is (B)"), a letter alone or first on the
    first line ("B", "B. because"), the only choice whose full text occurs in the answer. An answer that names
    no choice is wrong, since the method did answer; only refused, empty and cut-off answers are unscorable.
    """

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        choices = fields.get("choices") or []
        target = _target_letter(_targets(fields)[0], choices)
        return float(chosen_letter(_usable_text(answer), choices) == target)


def chosen_letter(text: str, choices: list[str]) -> str | None:
    """The letter that an answer names, or None."""
    letters = string.ascii_uppercase[: len(choices)] or string.ascii_uppercase
    said = re.findall(rf"answer(?:\s+is)?\s*[:=]?\s*\**\(?([{letters}])\b", text, flags=re.IGNORECASE)
    if said:
        return str(said[-1]).upper()
    alone = re.match(rf"\s*[\(\[\*]*([{letters}])(?:[\)\]\.:,\*]|\s|$)", text)
    if alone:
        return alone.group(1)
    named = [letter for letter, choice in zip(letters, choices, strict=False) if choice and choice in text]
    return named[0] if len(named) == 1 else None


class NumericScorer:
    """1 where the last number of the answer equals the target within a tolerance."""

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        self._tolerance = tolerance

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        given = last_number(_usable_text(answer))
        targets = [last_number(target) for target in _targets(fields)]
        if None in targets:
            raise Unscorable("the prompt's target is not a number")
        near = (
            (math.isclose(given, t, rel_tol=0, abs_tol=self._tolerance) for t in targets if t is not None)
            if (given is not None)
            else ()
        )
        return float(any(near))


NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")


def last_number(text: str) -> float | None:
    """The last number in a text, thousands separators allowed, or None."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _usable_text(answer: Answer) -> str:
    if answer.finish_reason == "content_filter":
        raise Unscorable("refused by the endpoint's content filter")
    if not answer.text.strip():
        raise Unscorable("empty answer")
    if answer.finish_reason == "length":
        raise Unscorable("the answer was cut off at max_tokens")
    return answer.text


def _targets(fields: dict[str, Any]) -> list[str]:
    target = fields.get("target")
    if target is None:
        raise Unscorable("the prompt has no target")
    return [str(one) for one in target] if isinstance(target, list) else [str(target)]


def _target_letter(target: str, choices: list[str]) -> str:
    if target in choices:
        return string.ascii_uppercase[choices.index(target)]
    if len(target.strip()) == 1 and target.strip().upper() in string.ascii_uppercase:
        return target.strip().upper()
    raise Unscorable(f"the prompt's target '{target[:40]}' is neither a letter nor one of the choices")
