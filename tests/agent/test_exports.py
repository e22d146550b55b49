import json
import re
from pathlib import Path

import pytest

from agent.every_eval_ever import records, write_records
from agent.leaderboard import build
from agent.web import static_page
from tests.agent.boards import Board, fill, open_database

SCHEMA = Path(__file__).parents[1] / "fixtures" / "every-eval-ever-0.3.0.schema.json"


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    database = open_database(tmp_path_factory.mktemp("exports"))
    with database.begin() as session:
        filled = fill(session)
        filled.score(filled.method("../../etc/<passwd>"), [4, 4])
        Board.create(session, "void")
        built = build(session, "trivia")
    database.close()
    return built


class TestEveryEvalEver:
    def test_records_keep_to_the_schema(self, board) -> None:
        schemas = pytest.importorskip("jsonschema_rs", reason="no JSON Schema validator is installed")
        validator = schemas.validator_for(json.loads(SCHEMA.read_text(encoding="utf-8")))
        made = records(board, "Example Lab")
        assert len(made) == len(board.rows) == 6
        for record in made:
            assert [str(error) for error in validator.iter_errors(json.loads(json.dumps(record)))] == []

    def test_estimates_carry_their_uncertainty(self, board) -> None:
        row = next(row for row in board.rows if row.method == "dune-34b")
        record = next(r for r in records(board) if r["model_info"]["name"] == "dune-34b")
        details = record["evaluation_results"][0]["score_details"]
        assert details["score"] == row.score
        assert details["uncertainty"]["confidence_interval"]["lower"] == row.low
        assert details["uncertainty"]["num_samples"] == row.acquired
        assert details["details"]["estimated"] == "yes"

    def test_files_lie_below_the_folder_and_stay_the_same(self, board, tmp_path: Path) -> None:
        first, second = (sorted(write_records(board, tmp_path)) for _ in range(2))
        assert first == second
        for path in first:
            assert path.resolve().is_relative_to(tmp_path / "data" / "trivia")
            assert re.fullmatch(
                r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", path.stem
            )


def test_static_page_needs_nothing_else(board) -> None:
    text = static_page(board)
    assert all(f">{row.method}</th>" in text for row in board.rows if "<" not in row.method)
    assert not re.search(r"<script|<link|<img|\ssrc=|\shref=|url\(", text)
    assert "<passwd>" not in text
