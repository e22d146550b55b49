"""Vectors of a matrix folder's outputs, encoded once and kept on disk by the hash of what was encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from estimators import make_encoder

__all__ = ["encode_texts"]


def encode_texts(texts: Sequence[str], encoder_name: str, cache: Path) -> NDArray[np.float32]:
    """(T, d) vectors of T texts; an encoder that learns from a corpus is fitted on these texts.

    Args:
        texts: What to encode.
        encoder_name: Registered name, `head:argument` allowed.
        cache: Folder of vectors made before.

    Raises:
        UsageError: The encoder is unknown, or a package or key that it needs is missing.
    """
    distinct = list(dict.fromkeys(texts))
    encoder = make_encoder(encoder_name).fit(distinct)
    path = cache / "vectors" / f"{_key(encoder.identity, distinct)}.npy"
    vectors = _load(path, len(distinct))
    if vectors is None:
        vectors = encoder.encode(distinct)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npy")
        np.save(part, vectors)
        part.replace(path)
    place = {text: i for i, text in enumerate(distinct)}
    return vectors[[place[text] for text in texts]]


def _key(identity: str, texts: Sequence[str]) -> str:
    digest = hashlib.sha256(identity.encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()[:32]


def _load(path: Path, count: int) -> NDArray[np.float32] | None:
    try:
        vectors: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return vectors if vectors.ndim == 2 and len(vectors) == count else None
