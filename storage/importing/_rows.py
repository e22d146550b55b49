"""Scores that come one by one, from readers of other formats: collected, then checked like a long table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from assay.errors import BadInputError
from assay.matrix_folder import Weighting
from storage.database import Database
from storage.importing._long_table import Table, incoming_of
from storage.importing._store import ImportReport, check_weighting, store

__all__ = ["Rows", "import_lines", "import_rows"]

FIELDS = ("model", "dataset", "prompt_id", "score", "prompt", "output", "cost")
REQUIRED = FIELDS[:4]
NUMBERS = ("score", "cost")
LAYOUT = f"a line is an object with {', '.join(REQUIRED)}; it may have {', '.join(FIELDS[4:])}"


class Rows:
    """Collects scores and the reasons why others were left out.

    Args:
        source: The file or folder, for messages.
    """

    def __init__(self, source: Path | str) -> None:
        self.source = Path(source)
        self.reasons: Counter[str] = Counter()
        self.notes: list[str] = []
        self.scorer_params: dict[str, Any] = {}
        self._columns: dict[str, list[Any]] = {name: [] for name in FIELDS}
        self._places: list[str] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(
        self,
        place: str,
        *,
        model: str,
        dataset: str,
        prompt_id: str,
        score: float,
        prompt: str | None = None,
        output: str | None = None,
        cost: float | None = None,
    ) -> None:
        """Take a score; `place` says where in the source it stands."""
        values = (model, dataset, prompt_id, float(score), prompt, output, cost)
        for name, value in zip(FIELDS, values, strict=True):
            self._columns[name].append(value)
        self._places.append(place)

    def skip(self, reason: str) -> None:
        """Leave a row out."""
        self.reasons[reason] += 1

    def table(self) -> Table:
        """The scores as a long table."""
        if not self._places:
            why = "; ".join(f"{reason}: {count}" for reason, count in self.reasons.items())
            raise BadInputError(f"{self.source} has no score", why or "it has no rows")
        arrays = {
            name: pa.array(
                column if name in NUMBERS else [_clean(value) for value in column],
                pa.float64() if name in NUMBERS else pa.large_string(),
            )
            for name, column in self._columns.items()
            if name in REQUIRED or any(value is not None for value in column)
        }
        return Table(self.source, pa.table(arrays), tuple(self._places))


def _clean(text: str | None) -> str | None:
    """Half a surrogate pair, as JSON escapes can spell it, is no text that a file may hold."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def import_rows(
    db: Database, rows: Rows, benchmark_name: str, *, weighting: Weighting = "dataset"
) -> ImportReport:
    """Store collected scores: everything, or nothing where anything is wrong.

    Raises:
        BadInputError: There is no score, or one contradicts another or what is stored.
        StorageError: The database cannot be used.
    """
    check_weighting(weighting)
    incoming = incoming_of(rows.table(), rows.reasons, rows.scorer_params, tuple(rows.notes))
    return store(db, incoming, benchmark_name, weighting)


def import_lines(
    db: Database, lines: Iterable[bytes], benchmark_name: str, *, weighting: Weighting = "dataset"
) -> ImportReport:
    """Import NDJSON: one object a line, with the fields of a long table.

    Args:
        db: The database.
        lines: The lines; empty ones are passed over.
        benchmark_name: The benchmark; made where there is none.
        weighting: As in `import_long_table`.

    Raises:
        BadInputError: A line is wrong (the message names it); nothing is stored.
        StorageError: The database cannot be used.
    """
    rows = Rows("request body")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"line {number}"
            rows.add(place, **_fields(line, place))
    return import_rows(db, rows, benchmark_name, weighting=weighting)


def _fields(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{place}: not JSON: {error}", "write one JSON object a line") from None
    if not isinstance(row, dict):
        raise BadInputError(f"{place}: expected a JSON object", "write one JSON object a line")
    unknown = [name for name in row if name not in FIELDS]
    if unknown:
        raise BadInputError(f"{place}: unknown field '{unknown[0][:50]}'", f"known: {', '.join(FIELDS)}")
    return {name: _checked(row.get(name), name, place) for name in FIELDS if name in row or name in REQUIRED}


def _checked(value: Any, name: str, place: str) -> Any:
    if value is None and name not in REQUIRED:
        return None
    if name in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInputError(f"{place}: '{name}' must be a number", LAYOUT)
        return _finite(value, name, place)
    if not isinstance(value, str) or (name in REQUIRED and not value):
        raise BadInputError(f"{place}: '{name}' is missing or no text", LAYOUT)
    return value


def _finite(value: float, name: str, place: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise BadInputError(f"{place}: '{name}' is too large", LAYOUT) from None
