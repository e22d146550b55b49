import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agent import render
from agent.leaderboard import Leaderboard, build, rank_ranges
from assay.errors import UsageError
from storage.coverage import load_coverage
from storage.database import Database
from storage.matrices import load_matrix
from tests.agent.boards import Board, fill, open_database, random_board


@pytest.fixture
def database(tmp_path: Path):
    database = open_database(tmp_path)
    yield database
    database.close()


@pytest.fixture
def board(database: Database) -> Leaderboard:
    with database.begin() as session:
        fill(session)
    with database.read() as session:
        return build(session, "trivia")


class TestRows:
    def test_are_sorted_by_score_and_hold_studied_and_complete_methods(self, board: Leaderboard) -> None:
        names = [row.method for row in board.rows]
        assert names == ["amber-70b", "dune-34b", "basalt-13b", "ember-9b", "cobalt-7b"]
        assert [row.rank for row in board.rows] == [1, 2, 3, 4, 5]

    def test_complete_row_is_exact(self, board: Leaderboard) -> None:
        row = board.rows[0]
        assert row.score == pytest.approx((18 / 20 + 16 / 20) / 2)
        assert (row.low, row.high, row.std, row.interval_kind) == (row.score, row.score, 0.0, "complete")
        assert (row.acquired, row.total, row.acquired_share, row.cost) == (40, 40, 1.0, 0)
        assert row.age_seconds(board.built_at) is None

    def test_studied_row_shows_its_newest_estimate(self, board: Leaderboard) -> None:
        row = board.rows[1]
        assert (row.score, row.std, row.acquired) == (0.80, 0.03, 12)
        assert (row.estimator, row.version_id, row.study_state) == ("linear-gaussian", 1, "done")
        age = row.age_seconds(board.built_at)
        assert age is not None
        assert 0 <= age < 60

    def test_running_study_without_a_version_names_its_estimator(self, board: Leaderboard) -> None:
        row = board.rows[3]
        assert (row.estimator, row.version_id, row.study_state) == ("linear-gaussian", None, "running")

    def test_what_is_not_shown_is_counted(self, board: Leaderboard) -> None:
        assert (board.pending, board.unlisted, board.retired) == (1, 1, 1)

    def test_exact_score_replaces_an_estimate_once_every_prompt_is_scored(self, database: Database) -> None:
        with database.begin() as session:
            board = Board.create(session)
            method = board.method("amber")
            board.estimate(board.study(method), method, 0.3, 0.1)
            board.score(method, [10, 10])
        with database.read() as session:
            (row,) = build(session, "trivia").rows
        assert (row.score, row.interval_kind, row.cost) == (0.5, "complete", 25_000)

    def test_prompts_added_later_make_an_estimate_stale(self, database: Database) -> None:
        with database.begin() as session:
            board = Board.create(session)
            method = board.method("amber")
            board.estimate(board.study(method), method, 0.3, 0.1)
            Board.create(session, sizes=(20, 21))
        with database.read() as session:
            (row,) = build(session, "trivia").rows
        assert row.stale

    def test_empty_benchmark_has_no_rows(self, database: Database) -> None:
        with database.begin() as session:
            Board.create(session, "void", ())
        with database.read() as session:
            board = build(session, "void")
        assert (board.rows, board.prompts) == ((), 0)

    def test_unknown_benchmark_names_the_known_ones(self, board: Leaderboard, database: Database) -> None:
        with database.read() as session, pytest.raises(UsageError, match="trivia"):
            build(session, "trivla")


class TestCoverage:
    def test_exact_scores_equal_those_of_the_matrix(self, database: Database) -> None:
        with database.begin() as session:
            fill(session)
        with database.read() as session:
            benchmark = fill_benchmark(session)
            stored = load_matrix(session, benchmark)
            coverage = load_coverage(session, benchmark)
        np.testing.assert_array_equal(coverage.method_pks, stored.method_pks)
        np.testing.assert_allclose(coverage.exact_scores(), stored.matrix.benchmark_scores(), rtol=1e-6)

    def test_cache_is_used_and_renewed(self, database: Database, tmp_path: Path) -> None:
        with database.begin() as session:
            board = fill(session)
        with database.read() as session:
            first = build(session, "trivia", tmp_path / "cache")
        with database.read() as session:
            assert build(session, "trivia", tmp_path / "cache").rows == first.rows
        with database.begin() as session:
            board.session = session
            board.score(board.method("glacier-2b"), [20, 20])
        with database.read() as session:
            second = build(session, "trivia", tmp_path / "cache")
        with database.read() as session:
            assert build(session, "trivia").rows == second.rows
        assert second.rows[0].method == "glacier-2b"

    def test_half_a_cache_file_is_ignored(self, database: Database, tmp_path: Path) -> None:
        with database.begin() as session:
            fill(session)
        (tmp_path / "coverage-1.npz").write_bytes(b"PK half")
        with database.read() as session:
            assert len(build(session, "trivia", tmp_path).rows) == 5

    def test_new_prompts_make_complete_rows_incomplete(self, database: Database, tmp_path: Path) -> None:
        with database.begin() as session:
            fill(session)
        with database.read() as session:
            build(session, "trivia", tmp_path)
        with database.begin() as session:
            Board.create(session, sizes=(20, 21))
        with database.read() as session:
            board = build(session, "trivia", tmp_path)
        assert {row.interval_kind for row in board.rows} == {"predicted", "sampling"}
        assert board.unlisted == 4


class TestRanks:
    def test_separated_methods_have_one_rank_each(self) -> None:
        best, worst = rank_ranges(np.array([0.9, 0.5, 0.1]), np.full(3, 0.01), 0.95)
        assert best.tolist() == worst.tolist() == [1, 2, 3]

    def test_methods_that_cannot_be_separated_share_a_range(self) -> None:
        best, worst = rank_ranges(np.array([0.52, 0.50, 0.1]), np.full(3, 0.05), 0.95)
        assert (best.tolist(), worst.tolist()) == ([1, 1, 3], [2, 2, 3])

    def test_exact_ties_share_a_rank_range(self) -> None:
        best, worst = rank_ranges(np.array([0.5, 0.5]), np.zeros(2), 0.95)
        assert (best.tolist(), worst.tolist()) == ([1, 1], [2, 2])

    @given(
        st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.3)), min_size=1, max_size=30),
        st.floats(0.5, 0.999),
    )
    def test_range_holds_the_rank(self, methods: list[tuple[float, float]], level: float) -> None:
        score, spread = (np.array(values) for values in zip(*methods, strict=True))
        best, worst = rank_ranges(score, spread, level)
        rank = 1 + (score[None, :] - score[:, None] > 1e-12).sum(axis=1)
        assert (best <= rank).all()
        assert (rank <= worst).all()
        assert (worst <= len(score)).all()

    def test_better_than_next(self, board: Leaderboard) -> None:
        chances = [row.better_than_next for row in board.rows]
        assert chances[-1] is None
        assert chances[0] == pytest.approx(0.9522, abs=1e-3)  # Phi(0.05 / 0.03)
        assert all(0.5 <= chance <= 1 for chance in chances[:-1] if chance is not None)


class TestRenderers:
    def test_dict_is_json(self, board: Leaderboard) -> None:
        data = json.loads(json.dumps(render.as_dict(board)))
        assert data["benchmark"] == "trivia"
        assert data["rows"][1]["method"] == "dune-34b"
        assert data["rows"][1]["cost_usd"] == 0.025
        assert data["cost"] == 50_000

    def test_csv_has_a_line_per_method(self, board: Leaderboard) -> None:
        rows = list(csv.DictReader(io.StringIO(render.as_csv(board))))
        assert [row["method"] for row in rows] == [row.method for row in board.rows]
        assert rows[1]["rank_best"] == "1"

    def test_table_names_every_method(self, board: Leaderboard) -> None:
        text = shown(board)
        assert all(row.method in text for row in board.rows)
        assert "exact" in text

    def test_narrow_table_shows_every_name_and_number(self, board: Leaderboard) -> None:
        console = Console(file=io.StringIO(), width=80)
        console.print(render.as_table(board, 80))
        text = console.file.getvalue()
        assert all(row.method in text for row in board.rows)
        assert "0.741–0.859" in text
        assert "12/40" in text
        assert "…" not in text

    def test_markdown_has_a_line_per_method(self, board: Leaderboard) -> None:
        lines = [line for line in render.as_markdown(board).splitlines() if line.startswith("| ")]
        assert len(lines) == 2 + len(board.rows)

    def test_notes_say_what_is_left_out(self, board: Leaderboard) -> None:
        text = " ".join(render.notes(board))
        assert "Not shown: 1 retired" in text
        assert "Spent on the estimates shown: $0.0500" in text

    def test_hostile_names_are_inert(self, database: Database) -> None:
        names = ["=cmd()", "[bold]x[/bold]", "a|b<script>", "esc\x1b[31m", "rtl\u202eevil", "x" * 200]
        with database.begin() as session:
            board = Board.create(session)
            for name in names:
                board.score(board.method(name), [10, 10])
        with database.read() as session:
            built = build(session, "trivia")
        assert "\n'=cmd()," not in render.as_csv(built)
        assert ",'=cmd()," in render.as_csv(built)
        assert "[bold]x[/bold]" in shown(built)
        markdown, text = render.as_markdown(built), shown(built)
        assert "<script>" not in markdown
        assert all("\x1b" not in page and "\u202e" not in page for page in (markdown, text))
        assert "esc[U+001B]" in text


def test_many_methods(database: Database) -> None:
    with database.begin() as session:
        random_board(session, 100)
    with database.read() as session:
        board = build(session, "large")
    assert [row.rank for row in board.rows] == list(range(1, 101))
    assert all(row.rank_best <= row.rank <= row.rank_worst for row in board.rows)


def fill_benchmark(session):
    from storage.catalog import find_benchmark

    return find_benchmark(session, "trivia")


def shown(board: Leaderboard) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(render.as_table(board))
    return console.file.getvalue()
