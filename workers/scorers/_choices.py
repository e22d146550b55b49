"""Scores a multiple-choice question by what the model finds most probable, not by what it writes."""

from __future__ import annotations

from typing import Any

from assay.errors import UsageError
from workers.backends import Answer
from workers.scorers._base import Unscorable
from workers.scorers._text import target_letter, targets_of

__all__ = ["LoglikelihoodChoiceScorer"]

NORMALIZATIONS = ("none", "bytes")


class LoglikelihoodChoiceScorer:
    """1 where the choice with the highest log-likelihood after the prompt is the target.

    Needs a backend that gives the log-likelihood of each choice (`transformers`, `command`). The prompt's
    choices are put after the prompt as they are.

    Args:
        normalize: "none", or "bytes": divided by the choice's length in bytes, so that long choices do not
            lose for their length alone (acc and acc_norm of lm-evaluation-harness).
    """

    needs_choices = True

    def __init__(self, *, normalize: str = "none") -> None:
        if normalize not in NORMALIZATIONS:
            raise UsageError(f"unknown normalization '{normalize}'", f"known: {', '.join(NORMALIZATIONS)}")
        self._by_length = normalize == "bytes"

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        choices = [str(choice) for choice in fields.get("choices") or []]
        target = target_letter(targets_of(fields)[0], choices)
        given = answer.choice_logprobs
        if given is None or len(given) != len(choices):
            raise Unscorable("the answer brought no log-likelihood for each of the prompt's choices")
        weights = [len(choice.encode()) or 1 if self._by_length else 1 for choice in choices]
        likely = [logprob / weight for logprob, weight in zip(given, weights, strict=True)]
        return float(likely.index(max(likely)) == ord(target) - ord("A"))
