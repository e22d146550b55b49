"""Formatting variants of a template: the same words with other separators, spacing, operators and casing.

The template is taken as labelled parts ("Question: {text}"), and the variants as the nodes of a graph whose
edges change one feature. A walk over the graph collects unique templates, nearest first (Maia Polo et al.
2024, appendix J, after Sclar et al. 2023).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from assay.errors import BadInputError

__all__ = ["FEATURES", "Formatting", "Variant", "generate_variants"]

#: Values that each feature may take.
FEATURES: dict[str, tuple[str, ...]] = {
    "separator": (":", "::", " -", " =", " ||", " <sep>", ".", ""),
    "space": (" ", "\n", "\t", "  ", " \n"),
    "operator": ("\n", "\n\n", " | ", ", ", "; ", " , \n", " "),
    "casing": ("as-is", "upper", "lower", "title"),
}

#: A label, its separator and space, then a field or the end of the text: "Question: {text}", "Answer:".
PART = re.compile(
    r"(?P<label>[^\W\d_][\w ]*?)(?P<separator> ?(?:::|:|\|\||<sep>|[-=.]))(?P<space>[ \t\n]*)"
    r"(?P<field>\{\{[^{}]*\}\}|\{\w+\}|\s*\Z)"
)


@dataclass(frozen=True)
class Formatting:
    """A node of the graph.

    Attributes:
        separator: Between a label and its space.
        space: Between the separator and the field.
        operator: Between one part and the next.
        casing: How labels are written: as-is, upper, lower or title.
    """

    separator: str
    space: str
    operator: str
    casing: str = "as-is"


@dataclass(frozen=True)
class Variant:
    """A template and how it came about.

    Attributes:
        text: The template.
        formatting: Its node.
        distance: Edges from the base template to it.
    """

    text: str
    formatting: Formatting
    distance: int


@dataclass(frozen=True)
class _Base:
    opening: str  # what stands before the first labelled part
    parts: tuple[tuple[str, str], ...]  # label and field
    formatting: Formatting


def generate_variants(text: str, count: int, rng: np.random.Generator) -> list[Variant]:
    """Up to `count` unique variants of a template, itself first; fewer where the graph has fewer.

    From the agenda a template is taken; one feature is swapped for each of its other values; what is new goes
    on the agenda and into the result. The order of the swaps is drawn, so that a small number of variants
    does not only change the separator.

    Raises:
        BadInputError: The template has no labelled part such as "Question: {text}", or count is below 1.
    """
    if count < 1:
        raise BadInputError(f"cannot generate {count} variants", "ask for 1 or more")
    base = _parse(text)
    agenda = deque([Variant(text, base.formatting, 0)])
    found = {text: agenda[0]}
    while agenda and len(found) < count:
        node = agenda.popleft()
        for other in _neighbours(node.formatting, rng):
            written = _write(base, other)
            if written not in found and len(found) < count:
                found[written] = Variant(written, other, node.distance + 1)
                agenda.append(found[written])
    return list(found.values())


def _neighbours(formatting: Formatting, rng: np.random.Generator) -> list[Formatting]:
    changed = [
        replace(formatting, **change)
        for feature, values in FEATURES.items()
        for value in values
        if value != getattr(formatting, feature)
        for change in [{feature: value}]
    ]
    return [changed[int(i)] for i in rng.permutation(len(changed))]


def _parse(text: str) -> _Base:
    found = list(PART.finditer(text))
    if not any(match["field"].strip() for match in found):
        raise BadInputError(
            "the base template has no labelled part",
            "write it with labels, such as 'Question: {text}\\nAnswer:'",
        )
    first = found[0]
    labels = tuple((match["label"].strip(" "), match["field"].strip()) for match in found)
    between = [text[a.end() : b.start()] for a, b in pairwise(found)]
    formatting = Formatting(first["separator"], first["space"], between[0] if between else "\n")
    leftover = text[found[-1].end() :].strip()
    if leftover or any(gap.strip(" \n\t|,;") for gap in between):
        raise BadInputError(
            "the base template has text between or after its labelled parts",
            "put such text in front of the first label",
        )
    return _Base(text[: first.start()], labels, formatting)


def _write(base: _Base, formatting: Formatting) -> str:
    casing: dict[str, Any] = {"upper": str.upper, "lower": str.lower, "title": str.title}
    write: Any = casing.get(formatting.casing, str)
    separator, space, operator, _ = astuple(formatting)
    parts = [
        f"{write(label)}{separator}" + (f"{space or ' '}{field}" if field else "")
        for label, field in base.parts
    ]
    return str(base.opening + operator.join(parts))
