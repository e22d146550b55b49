"""How alike two methods' answers to the same prompt are, by the words that they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import normalize

__all__ = ["likeness", "word_vectors"]

BUCKETS = 2**18


def word_vectors(texts: Sequence[str | None]) -> csr_matrix:
    """(N, 2^18) unit rows of log word counts, hashed: the same text has the same vector in any corpus."""
    if not texts:
        return csr_matrix((0, BUCKETS))
    counts = HashingVectorizer(n_features=BUCKETS, alternate_sign=False, norm=None).transform(
        [text or "" for text in texts]
    )
    counts.data = 1.0 + np.log(counts.data)
    return csr_matrix(normalize(counts))


def likeness(first: csr_matrix, second: csr_matrix) -> NDArray[np.float32]:
    """(N,) cosine of two methods' answers, prompt by prompt, in [0, 1]; 0 where either is empty."""
    cosines: NDArray[np.float32] = np.asarray(first.multiply(second).sum(axis=1), dtype=np.float32).ravel()
    return np.clip(cosines, 0.0, 1.0)
