"""Prompt vectors, cached by the hash of what was encoded and the identity of what encoded it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col, select

from storage.tables import Embedding, Prompt

__all__ = ["add_vectors", "prompt_texts", "vectors_of"]

CHUNK = 500
LITTLE_ENDIAN = np.dtype("<f4")


def prompt_texts(session: Session, prompt_pks: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Prompt id -> (content hash, text)."""
    found: dict[int, tuple[str, str]] = {}
    for part in _chunks(list(prompt_pks)):
        query = select(Prompt.id, Prompt.content_hash, Prompt.text).where(col(Prompt.id).in_(part))
        found.update({int(pk or 0): (digest, text) for pk, digest, text in session.exec(query).all()})
    return found


def vectors_of(session: Session, hashes: Iterable[str], encoder: str) -> dict[str, NDArray[np.float32]]:
    """Content hash -> vector, of those that are cached for the encoder's identity."""
    found: dict[str, NDArray[np.float32]] = {}
    for part in _chunks(list(hashes)):
        query = select(Embedding).where(Embedding.encoder == encoder, col(Embedding.content_hash).in_(part))
        for row in session.exec(query).all():
            found[row.content_hash] = np.frombuffer(row.vector, dtype=LITTLE_ENDIAN).astype(np.float32)
    return found


def add_vectors(session: Session, encoder: str, vectors: Mapping[str, NDArray[np.float32]]) -> None:
    """Cache vectors; those that are there already stay."""
    rows = [
        {"content_hash": digest, "encoder": encoder, "vector": vector.astype(LITTLE_ENDIAN).tobytes()}
        for digest, vector in vectors.items()
    ]
    if rows:
        connection = session.connection()
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        connection.execute(dialect.insert(Embedding).on_conflict_do_nothing(), rows)


def _chunks(items: list[str] | list[int]) -> Iterable[list[str] | list[int]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
