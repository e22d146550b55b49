"""Prompt vectors: made once per text, cached in storage, given to the policies that look at them."""

from __future__ import annotations

import numpy as np
import pytest

from assay.errors import UsageError
from estimators._encoders import TfidfSvdEncoder
from storage import catalog
from storage.matrices import load_columns
from storage.tables import Embedding, StudyState
from tests.world import BENCHMARK, World
from workers.embedding import embed_prompts


def columns(world: World):  # type: ignore[no-untyped-def]
    with world.database.read() as session:
        return load_columns(session, catalog.find_benchmark(session, BENCHMARK))


def test_vectors_are_encoded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = embed_prompts(world.database, columns(world), "tfidf-svd")
    assert first.shape == (36, 64)
    assert len(world.rows(Embedding, Embedding.content_hash)) == 36

    def never(self: TfidfSvdEncoder, texts: list[str]) -> np.ndarray:
        raise AssertionError("encoded again")

    monkeypatch.setattr(TfidfSvdEncoder, "_encode", never)
    assert np.array_equal(first, embed_prompts(world.database, columns(world), "tfidf-svd"))


def test_a_live_study_chooses_by_text(world: World) -> None:
    study = world.add_study(world.add_model("m17"), policy="cluster-embed", max_prompts=6)
    world.settle()
    done = world.study(study)
    assert (done.state, len(world.acquired())) == (StudyState.DONE, 6)


def test_an_unknown_encoder_pauses_the_study_with_the_known_ones(world: World) -> None:
    world.settings.encoder = "tfidf"
    study = world.add_study(world.add_model("m17"), policy="cluster-embed", max_prompts=6)
    world.settle()
    assert world.study(study).state == StudyState.PAUSED
    assert "tfidf-svd" in world.study(study).reason
    with pytest.raises(UsageError):
        embed_prompts(world.database, columns(world), "tfidf")
