"""Showing values that others wrote (names, prompts, reasons) and amounts, the same everywhere."""

from __future__ import annotations

import unicodedata
from datetime import datetime

from storage.tables import Budget

__all__ = [
    "ago",
    "amount",
    "budget_name",
    "cap_in_words",
    "dollars",
    "option_of",
    "printable",
    "printable_lines",
    "span",
]

LONGEST = 200
# Control, format (direction overrides, zero-width), surrogate, private use, line and paragraph separators.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(value: object, longest: int = LONGEST) -> str:
    """One line of visible characters: hidden ones become their code (U+202E), long text is cut.

    Names and prompts come from outside: escape sequences could drive a terminal, direction overrides could
    make one name look like another.
    """
    text = str(value)
    cut = len(text) > longest
    text = text[: longest - 1] if cut else text
    if not text.isprintable():
        text = "".join(_visible(character) for character in " ".join(text.split()))
    return text + "…" if cut else text


def printable_lines(value: object) -> str:
    """Text with its line breaks and tabs, other hidden characters as their code."""
    lines = str(value).expandtabs(4).splitlines()
    return "\n".join(line if line.isprintable() else "".join(map(_visible, line)) for line in lines)


def _visible(character: str) -> str:
    return f"[U+{ord(character):04X}]" if unicodedata.category(character) in HIDDEN else character


def dollars(micro: int) -> str:
    """Micro-dollars as US dollars: more digits below a dollar, so that no cost looks like none."""
    if micro == 0:
        return "$0"
    amount = micro / 1e6
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}" if abs(amount) >= 0.0001 else f"${amount:.6f}"


def span(seconds: float) -> str:
    """A length of time in its largest fitting unit: "45 s", "3 min", "5 h", "12 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def ago(then: datetime | None, now: datetime) -> str:
    """How long ago something happened; a dash where it did not."""
    return "–" if then is None else f"{span(max(0.0, (now - then).total_seconds()))} ago"


def amount(value: int, unit: str) -> str:
    """An amount of a budget: dollars with their sign, everything else with its unit."""
    if unit == "gpu-ms":
        return f"{value / 1000:,.1f} GPU seconds"
    return dollars(value) if unit == "usd" else f"{value:,} {unit}"


def budget_name(budget: Budget) -> str:
    """A budget's scope as it is written in commands: "overall", "study 7", "endpoint http://host/v1"."""
    if budget.scope == "overall":
        return "overall"
    return f"{budget.scope} {budget.endpoint or budget.scope_id}"


def option_of(unit: str) -> str:
    """The option of `assay budget set` that gives an amount of this unit."""
    return "gpu-seconds" if unit == "gpu-ms" else unit


def cap_in_words(budget: Budget) -> str:
    """Such as "the overall cap of $5.00 per day"."""
    per = "" if budget.period == "total" else f" per {budget.period}"
    scope = f"{budget.scope} {budget.endpoint}".strip()
    return f"the {scope} cap of {amount(budget.cap, budget.unit)}{per}"
