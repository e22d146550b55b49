"""Vectors of a benchmark's prompts: from the cache in storage, the missing ones from the encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimators import make_encoder
from storage import embeddings
from storage.database import Database
from storage.matrices import BenchmarkColumns

__all__ = ["embed_prompts", "embed_texts"]


def embed_prompts(database: Database, columns: BenchmarkColumns, encoder_name: str) -> NDArray[np.float32]:
    """(N, d) vectors of the benchmark's prompts, in column order.

    Only texts that the encoder has not seen before are encoded; the same text in two benchmarks is encoded
    once. An encoder that learns from a corpus is fitted on these prompts, and its vectors are cached under an
    identity that holds the corpus.

    Raises:
        UsageError: The encoder is unknown, or a package or key that it needs is missing.
        AssayError: The service behind it failed.
    """
    pks = [int(pk) for pk in columns.prompt_pks]
    with database.read() as session:
        prompts = embeddings.prompt_texts(session, pks)
    vectors = _vectors(database, dict(prompts.values()), encoder_name)
    return np.stack([vectors[prompts[pk][0]] for pk in pks])


def embed_texts(database: Database, texts: Sequence[str], encoder_name: str) -> NDArray[np.float32]:
    """(T, d) vectors of any texts, cached as those of prompts are; an encoder that learns is fitted on them.

    Raises:
        UsageError: The encoder is unknown, or a package or key that it needs is missing.
        AssayError: The service behind it failed.
    """
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
    vectors = _vectors(database, dict(zip(digests, texts, strict=True)), encoder_name)
    return np.stack([vectors[digest] for digest in digests])


def _vectors(database: Database, texts: dict[str, str], encoder_name: str) -> dict[str, NDArray[np.float32]]:
    """Content hash -> vector; only what is not cached is encoded."""
    encoder = make_encoder(encoder_name).fit(list(texts.values()))
    with database.read() as session:
        vectors = embeddings.vectors_of(session, texts, encoder.identity)
    missing = [digest for digest in texts if digest not in vectors]
    if missing:
        made = encoder.encode([texts[digest] for digest in missing])
        fresh = dict(zip(missing, made, strict=True))
        with database.begin() as session:
            embeddings.add_vectors(session, encoder.identity, fresh)
        vectors.update(fresh)
    return vectors
