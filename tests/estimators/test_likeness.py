"""How alike answers are, by their words."""

from __future__ import annotations

import numpy as np
import pytest

from estimators import likeness, word_vectors


def test_equal_answers_are_alike_and_strangers_are_not() -> None:
    first = word_vectors(["the red fox", "one two three", "a river runs", ""])
    second = word_vectors(["The red fox!", "four five six", "the river sleeps", "words"])
    found = likeness(first, second)
    assert found.shape == (4,)
    assert found[0] == pytest.approx(1.0, abs=1e-6)
    assert found[1] == found[3] == 0.0
    assert 0.0 < found[2] < 1.0


def test_a_vector_does_not_depend_on_the_other_texts() -> None:
    alone, among = word_vectors(["the red fox"]), word_vectors(["green", None, "the red fox"])
    np.testing.assert_array_equal(alone.toarray()[0], among.toarray()[2])
    assert likeness(word_vectors([]), word_vectors([])).shape == (0,)
