"""Takes over the score that the replay backend brought."""

from __future__ import annotations

from typing import Any

from workers.backends import Answer
from workers.scorers._base import Unscorable

__all__ = ["ReplayScorer"]


class ReplayScorer:
    """The score that came with the answer.

    Args:
        source: What tells the scores apart from others, such as their judge; nothing depends on it.
    """

    def __init__(self, **source: Any) -> None:
        self.source = source

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        if answer.score is None:
            raise Unscorable("the answer brought no score: the scorer 'replay' needs the backend 'replay'")
        return answer.score
