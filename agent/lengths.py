"""How long answers are, by dataset: what a call will probably cost depends on it at every step of a study."""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, func, select

from storage.matrices import BenchmarkColumns
from storage.tables import Output, Prompt

__all__ = ["AnswerLengths"]


class AnswerLengths:
    """Sums over the answers read so far; only the new ones are read again.

    Answers are numbered as they are stored. One committed after a later number was read is left out: the
    mean is an expectation, and money is counted elsewhere.
    """

    def __init__(self) -> None:
        self._last = 0
        self._tokens: dict[int, int] = defaultdict(int)
        self._answers: dict[int, int] = defaultdict(int)
        self._lock = threading.Lock()

    def update(self, session: Session, columns: BenchmarkColumns) -> None:
        """Add the answers that were stored since the last time."""
        with self._lock:
            query = (
                select(
                    Prompt.dataset_id, func.count(), func.sum(Output.output_tokens), func.max(col(Output.id))
                )
                .join(Output, col(Output.prompt_id) == col(Prompt.id))
                .where(
                    col(Output.id) > self._last, col(Output.output_tokens) > 0
                )  # imported ones carry no count
                .where(col(Prompt.dataset_id).in_([int(pk) for pk in columns.dataset_pks]))
                .group_by(col(Prompt.dataset_id))
            )
            for dataset, count, tokens, last in session.exec(query).all():
                self._answers[dataset] += int(count)
                self._tokens[dataset] += int(tokens)
                self._last = max(self._last, int(last or 0))

    def mean_tokens(self, columns: BenchmarkColumns) -> NDArray[np.float64]:
        """(N,) mean answer length of each prompt's dataset, in tokens; NaN where there is no answer yet."""
        means = [
            self._tokens[pk] / self._answers[pk] if self._answers.get(pk) else np.nan
            for pk in (int(pk) for pk in columns.dataset_pks)
        ]
        return np.array(means, dtype=np.float64)[columns.dataset_index]
