"""What a template's text is made of, as covariates of a score model: discrete counts, or an embedding."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimators._encoders import make_encoder

__all__ = ["DISCRETE", "discrete_features", "template_features"]

FRAMING = re.compile(r"\b(?:[A-Z]\w*|\d+)\s*:")
FIELD = re.compile(r"\{\{.*?\}\}|\{\w+\}")

#: The features of Maia Polo et al. (2024), appendix M, in the order of the columns.
DISCRETE = (
    "all-caps words",
    "lower-case words",
    "capitalised words",
    "line breaks",
    "framing words",
    "colons",
    "dashes",
    "double bars",
    "separator tokens",
    "double colons",
    "left parentheses",
    "right parentheses",
    "quotation marks",
    "question marks",
    "spaces",
)
MARKS = (":", "-", "||", "<sep>", "::", "(", ")", '"', "?", " ")


def discrete_features(texts: Sequence[str]) -> NDArray[np.float64]:
    """(R, 15) counts of `DISCRETE`; the fields' names do not count as words."""
    return np.array([_counts(FIELD.sub(" ", text)) for text in texts], dtype=np.float64).reshape(-1, 15)


def _counts(text: str) -> list[int]:
    words = re.findall(r"[^\W\d_]+", text)
    return [
        sum(word.isupper() for word in words),
        sum(word.islower() for word in words),
        sum(word[0].isupper() and not word.isupper() for word in words),
        text.count("\n"),
        len(FRAMING.findall(text)),
        *(text.count(mark) for mark in MARKS),
    ]


def template_features(kind: str, texts: Sequence[str], encoder: str = "tfidf-svd") -> NDArray[np.float64]:
    """(R, p) covariates of R templates, for `SupportsRowFeatures.with_rows`.

    Args:
        kind: "discrete" (log counts, standardised) or "embedding" (by the encoder, fitted to these texts).
        texts: The templates' texts, one per row.
        encoder: Registered name of the encoder.
    """
    if kind == "embedding":
        return np.asarray(make_encoder(encoder).fit(texts).encode(texts), dtype=np.float64)
    logs = np.log1p(discrete_features(texts))
    spread = logs.std(axis=0)
    return np.asarray((logs - logs.mean(axis=0))[:, spread > 0] / spread[spread > 0])
