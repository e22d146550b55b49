import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.comparison import compare, paired_difference
from agent.items import LEAST_METHODS, item_statistics
from agent.leaderboard import build
from assay.errors import UsageError
from tests.agent.boards import fill, open_database


class TestItems:
    def test_statistics_of_a_complete_matrix(self) -> None:
        values = (np.random.default_rng(0).random((40, 7)) < np.linspace(0.1, 0.9, 7)).astype(np.float32)
        found = item_statistics(values)
        rest = (values.sum(axis=1, keepdims=True) - values) / 6
        expected = [np.corrcoef(values[:, j], rest[:, j])[0, 1] for j in range(7)]
        np.testing.assert_allclose(found.discrimination, expected, atol=1e-6)
        np.testing.assert_allclose(found.difficulty, 1 - values.mean(axis=0), atol=1e-6)

    def test_prompts_without_enough_scores_have_no_discrimination(self) -> None:
        values = np.full((10, 3), np.nan, dtype=np.float32)
        values[:, 0] = 1
        values[: LEAST_METHODS - 1, 1] = [0, 1, 0, 1]
        found = item_statistics(values)
        assert np.isnan(found.discrimination).all()
        assert found.counts.tolist() == [10, 4, 0]
        assert found.difficulty[:2].tolist() == [0.0, 0.5]
        assert np.isnan(found.difficulty[2])

    def test_wrong_reference_answer_is_found(self) -> None:
        rng = np.random.default_rng(1)
        ability = rng.normal(size=(60, 1))
        values = (ability + rng.normal(size=(60, 20)) > 0).astype(np.float32)
        values[:, 4] = 1 - values[:, 4]
        assert np.argmin(item_statistics(values).discrimination) == 4


class TestPairedDifference:
    weights, index = np.array([0.25, 0.25, 0.25, 0.25]), np.array([0, 0, 1, 1])

    def test_complete_rows_differ_exactly(self) -> None:
        a, b = np.array([1.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0, 0.0])
        found = paired_difference(a, b, self.weights, self.index, 0.95)
        assert found is not None
        assert (found.value, found.std, found.low, found.high, found.probability) == (0.5, 0, 0.5, 0.5, 1)
        general = paired_difference(a, b, self.weights, self.index, 0.95, finite=False)
        assert general is not None
        assert general.std > 0
        assert general.value == found.value

    def test_nothing_in_common(self) -> None:
        a, b = np.array([1.0, np.nan, 0.0, np.nan]), np.array([np.nan, 1.0, np.nan, 0.0])
        assert paired_difference(a, b, self.weights, self.index, 0.95) is None

    @given(st.integers(0, 2**31))
    def test_swapping_turns_the_sign(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        a, b = (np.where(rng.random(12) < 0.7, rng.integers(0, 2, 12), np.nan) for _ in range(2))
        weights, index = np.full(12, 1 / 12), np.repeat([0, 1, 2], 4)
        one, other = (paired_difference(x, y, weights, index, 0.9) for x, y in ((a, b), (b, a)))
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.value == pytest.approx(-other.value)
            assert one.probability == pytest.approx(1 - other.probability)
            assert -1 <= one.low <= one.value <= one.high <= 1

    def test_interval_covers_the_truth(self) -> None:
        rng, hits = np.random.default_rng(4), 0
        weights, index = np.full(400, 1 / 400), np.repeat([0, 1], 200)
        for _ in range(300):
            a, b = rng.random(400).round(), (rng.random(400) < 0.4).astype(float)
            asked = np.concatenate([rng.permutation(200)[:60], 200 + rng.permutation(200)[:60]])
            partly = np.full(400, np.nan)
            partly[asked] = b[asked]
            found = paired_difference(a, partly, weights, index, 0.95)
            assert found is not None
            hits += found.low <= (a - b).mean() <= found.high
        assert 0.91 <= hits / 300 <= 0.99


def test_compare_on_a_board(tmp_path) -> None:
    database = open_database(tmp_path)
    with database.begin() as session:
        fill(session)
    with database.read() as session:
        board = build(session, "trivia")
        found = compare(session, board, "dune-34b", "amber-70b")
        assert (found.common, found.prompts) == (3, 40)
        assert found.estimated is not None
        assert found.estimated.value == pytest.approx(0.8 - 0.85)
        assert not found.estimated.sure
        assert [(d.common, d.ties) for d in found.datasets] == [(3, 3), (0, 0)]
        exact = compare(session, board, "amber-70b", "basalt-13b")
        assert exact.paired is not None
        assert (exact.paired.value, exact.paired.std) == (pytest.approx(0.2), 0.0)
        with pytest.raises(UsageError, match="itself"):
            compare(session, board, "amber-70b", "amber-70b")
    database.close()
