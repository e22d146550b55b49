"""Answers and scores from a matrix folder: for tests, demos and what-if runs, with latency and failures."""

from __future__ import annotations

import asyncio
import hashlib
from functools import lru_cache

import numpy as np

from assay.errors import UsageError
from assay.matrix_folder import MatrixFolder, read_matrix_folder
from assay.specs import ModelSpec
from workers.backends._base import Answer, CallError, Request

__all__ = ["ReplayBackend"]


class ReplayBackend:
    """Replays one row of a matrix folder.

    `latency_ms` delays each answer; `failure_rate` makes that share of the tries fail as a broken connection
    would, chosen by the prompt and the try alone, so that the same run fails at the same places.
    """

    free = True

    def __init__(self, spec: ModelSpec) -> None:
        if spec.matrix is None:
            raise UsageError(f"model '{spec.name}' has no matrix folder", 'set matrix = "FOLDER"')
        folder, rows, columns = _opened(spec.matrix)
        name = spec.row or spec.name
        if name not in rows:
            raise UsageError(f"matrix folder {spec.matrix} has no row '{name}'", 'set row = "NAME"')
        self._name = name
        self._scores = folder.matrix.values[rows[name]]
        self._columns = columns
        self._outputs = _outputs(spec.matrix).get(name)
        self._latency_s = spec.latency_ms / 1000
        self._failure_rate = spec.failure_rate

    async def answer(self, request: Request) -> Answer:
        """See `Backend.answer`."""
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        if _unit_hash(self._name, request.key, request.attempt) < self._failure_rate:
            raise CallError("simulated failure", retry=True)
        column = self._columns.get(request.key)
        if column is None or np.isnan(self._scores[column]):
            raise CallError(f"the matrix has no score of '{self._name}' on '{request.key}'", retry=False)
        text = (self._outputs[column] if self._outputs else None) or ""
        return Answer(text=text, score=float(self._scores[column]))

    async def close(self) -> None:
        """Nothing to give back."""


@lru_cache(maxsize=4)
def _opened(path: str) -> tuple[MatrixFolder, dict[str, int], dict[str, int]]:
    folder = read_matrix_folder(path)
    rows = {name: i for i, name in enumerate(folder.matrix.method_ids)}
    columns = {key: j for j, key in enumerate(folder.matrix.prompt_ids)}
    return folder, rows, columns


@lru_cache(maxsize=4)
def _outputs(path: str) -> dict[str, tuple[str | None, ...]]:
    return _opened(path)[0].outputs()


def _unit_hash(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
