"""Cheap facts about an answer's text that judges are known to look at: length, structure, refusal.

Preferences of LLM judges go with length and formatting (Dubois et al., *Length-Controlled AlpacaEval*, 2024;
Zheng et al., *Judging LLM-as-a-Judge*, 2023), so a difference of these facts between two answers predicts
part of a verdict before any is bought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEATURES", "text_features"]

FEATURES = (
    "log length",
    "log lines",
    "log list items",
    "log bold",
    "log headings",
    "code",
    "short",
    "exclamations",
    "refusal",
    "ends a sentence",
    "commas",
    "word length",
    "distinct words",
)
ITEM = re.compile(r"(?m)^\s*(?:[-*]|\d+[.)])\s")
HEADING = re.compile(r"(?m)^#")
REFUSAL = re.compile(r"(?i)\b(?:sorry|as an ai|cannot|can't)\b")
SHORT = 150  # characters


def text_features(texts: Sequence[str | None]) -> NDArray[np.float64]:
    """(N, 13) facts about N answers, in the order of FEATURES; a missing answer counts as an empty one."""
    return np.array([_of(text or "") for text in texts]).reshape(len(texts), len(FEATURES))


def _of(text: str) -> list[float]:
    words = text.split()
    per_word = 1.0 / (len(words) + 1)
    return [
        np.log1p(len(text)),
        np.log1p(text.count("\n")),
        np.log1p(len(ITEM.findall(text))),
        np.log1p(text.count("**")),
        np.log1p(len(HEADING.findall(text))),
        float("```" in text),
        float(len(text) < SHORT),
        text.count("!") * per_word,
        float(bool(REFUSAL.search(text))),
        float(text.rstrip()[-1:] in tuple(".!?)\"`'")),
        text.count(",") * per_word,
        sum(map(len, words)) * per_word,
        len(set(text.lower().split())) * per_word,
    ]
