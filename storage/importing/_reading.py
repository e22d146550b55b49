"""What the readers of other tools' files share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import BadInputError

__all__ = ["first_text", "json_file", "json_lines", "mapping", "prompt_text", "unit_score"]

#: Where benchmarks keep what is asked, most telling first.
QUESTIONS = (
    "question",
    "query",
    "prompt",
    "problem",
    "instruction",
    "input",
    "sentence",
    "text",
    "goal",
)


def json_file(path: Path) -> Any:
    """The content of a JSON file; BadInputError where it has none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place ("file, line n") and content of each line of a JSON-lines file."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{path.name}, line {number}"
                    yield place, mapping(_value(line, place), place)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path} cannot be read: {error}") from None


def _value(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{place}: not JSON: {error}") from None


def mapping(value: Any, place: str) -> dict[str, Any]:
    """The value, which must be a JSON object."""
    if not isinstance(value, dict):
        raise BadInputError(f"{place}: expected a JSON object, got {type(value).__name__}")
    return value


def unit_score(value: Any) -> float | None:
    """A score in [0, 1] (true and false count as 1 and 0), or None where the value is none."""
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:  # NaN is refused, too
        return None
    return float(value)


def prompt_text(document: Any) -> str:
    """What is asked, from a document of whatever shape."""
    if isinstance(document, str):
        return document
    if not isinstance(document, Mapping):
        return json.dumps(document, sort_keys=True, ensure_ascii=False)
    for name in QUESTIONS:
        if isinstance(document.get(name), str) and document[name].strip():
            return str(document[name])
    return json.dumps(document, sort_keys=True, ensure_ascii=False)


def first_text(value: Any) -> str | None:
    """The first text in nested lists; None where there is none."""
    while isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[0]
    return value if isinstance(value, str) else None
