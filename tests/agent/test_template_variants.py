"""Formatting variants by a walk over the graph of features, and what templates look like to an estimator."""

from __future__ import annotations

import numpy as np
import pytest

from agent.template_variants import FEATURES, generate_variants
from assay.errors import BadInputError
from estimators.template_features import DISCRETE, discrete_features, template_features

BASE = "Answer the question.\nQuestion: {text}\nChoices: {choices}\nAnswer:"


def generate(text: str = BASE, count: int = 50, seed: int = 0) -> list[str]:
    return [variant.text for variant in generate_variants(text, count, np.random.default_rng(seed))]


def test_unique_variants_with_the_base_first() -> None:
    made = generate()
    assert made[0] == BASE
    assert len(made) == len(set(made)) == 50
    assert all(text.startswith("Answer the question.\n") for text in made)
    assert all("{text}" in text and "{choices}" in text for text in made)
    assert generate() == made
    assert generate(seed=1) != made


def test_nearest_come_first_and_every_feature_is_swapped() -> None:
    variants = generate_variants(BASE, 60, np.random.default_rng(0))
    distances = [variant.distance for variant in variants]
    assert distances == sorted(distances)
    near = [v.formatting for v in variants if v.distance == 1]
    most = sum(len(values) - 1 for values in FEATURES.values())
    assert most - 1 <= len(near) <= most  # the base's labels are in title case already
    for feature, values in FEATURES.items():
        assert len({getattr(formatting, feature) for formatting in near}) >= len(values) - 1


def test_the_whole_graph_is_walked_and_no_more() -> None:
    most = np.prod([len(values) for values in FEATURES.values()])
    assert most / 2 < len(generate("Question: {text}\nAnswer:", 10**6)) <= most


def test_jinja_fields_are_kept() -> None:
    made = generate("Question: {{ text }}\nAnswer:", 10)
    assert all("{{ text }}" in text for text in made)


@pytest.mark.parametrize("text", ["{text}", "no labels {text} at all", "Q: {text} please\nA:"])
def test_templates_without_labelled_parts_are_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="base template"):
        generate(text)


def test_discrete_features_count_what_the_paper_lists() -> None:
    (row,) = discrete_features(['Q1: READ this (twice) - "please"? ::\n{text} <sep> a || b'])
    found = dict(zip(DISCRETE, row, strict=True))
    assert found["all-caps words"] == 2  # Q, READ
    assert found["line breaks"] == 1
    assert found["colons"] == 3
    assert found["double colons"] == found["double bars"] == found["separator tokens"] == 1
    assert found["quotation marks"] == 2
    assert found["framing words"] == 1
    assert found["dashes"] == found["question marks"] == 1


def test_features_tell_variants_apart() -> None:
    texts = generate()
    for kind in ("discrete", "embedding"):
        features = template_features(kind, texts)
        assert features.shape[0] == len(texts)
        assert np.isfinite(features).all()
        assert features.std(axis=0).max() > 0
