"""Vectors of a benchmark's prompts: from the cache in storage, the missing ones from the encoder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from estimators import make_encoder
from storage import embeddings
from storage.database import Database
from storage.matrices import BenchmarkColumns

__all__ = ["embed_prompts"]


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
    texts = dict(prompts.values())
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
    return np.stack([vectors[prompts[pk][0]] for pk in pks])
