"""What every scorer is."""

from __future__ import annotations

from typing import Any, Protocol

from assay.statuses import Status
from workers.backends import Answer

__all__ = ["Scorer", "ScorerFactory", "Unscorable"]


class Unscorable(Exception):  # noqa: N818
    """An answer that says nothing about the method: refused, empty, cut off; or a prompt without a target.

    Args:
        reason: Why, in one line.
        status: What kind of answer it is.
    """

    def __init__(self, reason: str, status: Status = Status.UNSCORABLE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Scorer(Protocol):
    """Turns an answer into a score.

    A class says `graded = True` where its scores lie between 0 and 1 too (a dataset that states no score type
    is then of real scores), and `needs_choices = True` where it wants the log-likelihoods of the prompt's
    choices.
    """

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """Score in [0, 1].

        Args:
            answer: What the method answered.
            fields: The prompt's fields: `target`, `choices` and others.

        Raises:
            Unscorable: The answer cannot be judged.
        """
        ...


class ScorerFactory(Protocol):
    """Builds a scorer from its pinned parameters."""

    def __call__(self, **params: Any) -> Scorer:
        """Build it."""
        ...
