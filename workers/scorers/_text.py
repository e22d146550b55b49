"""Scorers that compare an answer's text with the prompt's target."""

from __future__ import annotations

import math
import re
import string
from typing import Any

from assay.errors import UsageError
from assay.statuses import Status
from workers.backends import Answer
from workers.scorers._base import Unscorable

__all__ = [
    "ExactMatchScorer",
    "MultipleChoiceScorer",
    "NumericScorer",
    "RegexScorer",
    "target_letter",
    "targets_of",
    "usable_text",
]


class ExactMatchScorer:
    """1 where the trimmed answer equals a target; case and outer punctuation are ignored by default."""

    def __init__(self, *, ignore_case: bool = True, ignore_punctuation: bool = True) -> None:
        self._ignore_case = ignore_case
        self._ignore_punctuation = ignore_punctuation

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        given = self._normal(usable_text(answer))
        return float(any(given == self._normal(target) for target in targets_of(fields)))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        if self._ignore_punctuation:
            text = _without_outer_punctuation(text)
        return text.casefold() if self._ignore_case else text


def _without_outer_punctuation(text: str) -> str:
    """Strip quotes, full stops and the like, but not the sign or point of a number, nor all there is."""
    bare = text.strip(string.punctuation + " ")
    if not bare:
        return text
    before = re.search(r"(?<![\w.])[-\u2212]?\.?$", text[: text.index(bare)])
    return (before.group() if before and bare[0].isdigit() else "") + bare


class MultipleChoiceScorer:
    """1 where the answer names the target's letter.

    Taken in this order: a letter said to be the answer ("the answer is (B)"), a letter alone or first
    ("B", "B. because", but not "A man walked"), the only choice whose full text occurs in the answer. An
    answer that names no choice is wrong, since the method did answer; only refused, empty and cut-off answers
    are unscorable.
    """

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        choices = fields.get("choices") or []
        target = target_letter(targets_of(fields)[0], choices)
        return float(chosen_letter(usable_text(answer), choices) == target)


class RegexScorer:
    """1 where the answer matches: a pattern takes the answer out of the text, or the target is the pattern.

    Args:
        extract: Pattern whose last match is compared with the targets (its first group, if it has one); None:
            the targets are patterns themselves, and one that is found anywhere is a match. A text that
            `extract` does not match is wrong, since the method did answer.
        ignore_case: Ignore case.
    """

    def __init__(self, *, extract: str | None = None, ignore_case: bool = True) -> None:
        self._flags = re.IGNORECASE if ignore_case else re.NOFLAG
        try:
            self._extract = None if extract is None else re.compile(extract, self._flags)
        except re.error as error:
            raise UsageError(f"the pattern '{extract}' cannot be read: {error}") from None

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        text, targets = usable_text(answer), targets_of(fields)
        if self._extract is None:
            return float(any(self._pattern(target).search(text) for target in targets))
        found = [
            (match.group(1) if match.re.groups else match.group()) for match in self._extract.finditer(text)
        ]
        return float(bool(found) and self._plain(found[-1]) in [self._plain(target) for target in targets])

    def _pattern(self, target: str) -> re.Pattern[str]:
        try:
            return re.compile(target, self._flags)
        except re.error as error:
            raise Unscorable(f"the prompt's target is not a pattern: {error}") from None

    def _plain(self, text: str | None) -> str:
        text = (text or "").strip()
        return text.casefold() if self._flags else text


OPENING = r"[\s*(\[\"'$]*(?:\\(?:boxed|text)\{)*\(?"
ENDS = r"(?=[)\].,:;*}\"'$]|\s*(?:\n|$))"  # after a letter that cannot be the beginning of a sentence
GOES_ON = r"(?=\s+(?:because|since|as|is|[-\u2013\u2014=(])(?:\s|\b))"


def chosen_letter(text: str, choices: list[str]) -> str | None:
    """The letter that an answer names, or None."""
    letters = string.ascii_uppercase[: len(choices)] or string.ascii_uppercase
    return _said(text, letters) or _alone(text, letters) or _only_named(text, letters, choices)


def _said(text: str, letters: str) -> str | None:
    """The last letter that is said to be the answer; a small one only where no word can begin with it."""
    sure = rf"(?:\s+is\b\s*[:=]?|\s*[:=]){OPENING}([{letters}])\b"
    ended = rf"(?:\s+is\b)?\s*[:=]?{OPENING}([{letters}{letters.lower()}]){ENDS}"
    found = re.findall(rf"(?i:answer)(?:{sure}|{ended})", text)
    return (found[-1][0] or found[-1][1]).upper() if found else None


def _alone(text: str, letters: str) -> str | None:
    """A letter at the beginning; "A" and "I" are words too, so they need a sign that they are not."""
    whole = text.strip(string.punctuation + string.whitespace).upper()
    if len(whole) == 1 and whole in letters:
        return whole
    plain = letters.replace("A", "").replace("I", "")
    word = rf"|[{plain}](?=\s)" if plain else ""
    found = re.match(rf"{OPENING}([{letters}]{ENDS}|[{letters}]{GOES_ON}{word})", text)
    return found.group(1) if found else None


def _only_named(text: str, letters: str, choices: list[str]) -> str | None:
    named = [
        letter
        for letter, choice in zip(letters, choices, strict=False)
        if choice and re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text, flags=re.IGNORECASE)
    ]
    return named[0] if len(named) == 1 else None


class NumericScorer:
    """1 where the last number of the answer equals the target within a tolerance."""

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        self._tolerance = tolerance

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        given = last_number(usable_text(answer))
        targets = [last_number(target) for target in targets_of(fields)]
        if None in targets:
            raise Unscorable("the prompt's target is not a number")
        near = (
            (math.isclose(given, t, rel_tol=0, abs_tol=self._tolerance) for t in targets if t is not None)
            if (given is not None)
            else ()
        )
        return float(any(near))


#: A sign counts where it cannot be a minus between two numbers; thousands separators and a currency may be.
NUMBER = re.compile(
    r"(?:(?<![\w).])([-+\u2212]))?[$€£]?"
    r"((?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+)"
)


def last_number(text: str) -> float | None:
    """The last number in a text, thousands separators allowed, or None."""
    found = NUMBER.findall(text)
    if not found:
        return None
    sign, digits = found[-1]
    return float(digits.replace(",", "")) * (1.0 if sign in ("", "+") else -1.0)


def usable_text(answer: Answer) -> str:
    """The answer's text; Unscorable where it was refused, is empty or was cut off."""
    if answer.finish_reason == "content_filter":
        raise Unscorable("refused by the endpoint's content filter", Status.REFUSED)
    if not answer.text.strip():
        raise Unscorable("empty answer", Status.EMPTY)
    if answer.finish_reason == "length":
        raise Unscorable("the answer was cut off at max_tokens", Status.TRUNCATED)
    return answer.text


def targets_of(fields: dict[str, Any]) -> list[str]:
    """The prompt's targets, at least one; Unscorable where it has none."""
    target = fields.get("target")
    if target is None:
        raise Unscorable("the prompt has no target")
    targets = [str(one) for one in target] if isinstance(target, list) else [str(target)]
    if not targets:
        raise Unscorable("the prompt has no target")
    return targets


def target_letter(target: str, choices: list[str]) -> str:
    """The letter of the right choice; Unscorable where the target is neither a letter nor a choice."""
    if target in choices:
        return string.ascii_uppercase[choices.index(target)]
    letter = target.strip(string.punctuation + string.whitespace).upper()
    if len(letter) == 1 and letter in string.ascii_uppercase:
        return letter
    raise Unscorable(f"the prompt's target '{target[:40]}' is neither a letter nor one of the choices")
