from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sqlmodel import select

from assay.errors import BadInputError
from storage import catalog, matrices
from storage.database import Database
from storage.importing import import_matrix_folder
from storage.matrices import StoredMatrix, load_matrix, load_rows
from storage.scores import ScoreBlock, ScoreRow, add_block, add_scores, bump_revision
from storage.tables import Origin, Score
from tests.storage.example import Example, small_benchmark, write_matrix_folder

GOOD = [0.0, 1.0, 0.5, 0.25]


@pytest.fixture
def example(db: Database) -> Example:
    return small_benchmark(db)


def rows(example: Example, values: list[float], origin: str = Origin.ACQUIRED) -> list[tuple]:
    method = example.method_ids[0]
    keys = example.prompt_ids
    return [
        ScoreRow(example.dataset_id, example.scorer_id, method, keys[j], value, origin).astuple()
        for j, value in enumerate(values)
    ]


def block(example: Example, values: list[float]) -> ScoreBlock:
    """Scores of the first method, in reverse order of the prompts."""
    n = len(values)
    return ScoreBlock(
        np.full(n, example.dataset_id),
        np.full(n, example.scorer_id),
        np.full(n, example.method_ids[0]),
        np.array(example.prompt_ids[:n])[::-1],
        np.array(values)[::-1],
    )


def stored(db: Database) -> list[float]:
    with db.read() as session:
        return [s.value for s in session.exec(select(Score).order_by(Score.prompt_id)).all()]


def test_scores_are_stored_once_and_the_first_stays(db: Database, example: Example):
    with db.begin() as session:
        assert add_scores(session, rows(example, GOOD[:2])) == 2
        assert add_scores(session, rows(example, GOOD)) == 2
        assert add_scores(session, rows(example, [1.0])) == 0  # bought twice: the first answer counts
        assert add_scores(session, []) == 0
    assert stored(db) == GOOD


def test_a_block_is_stored_once(db: Database, example: Example):
    with db.begin() as session:
        assert add_block(session, block(example, GOOD[:2])) == 2
        assert add_block(session, block(example, GOOD)) == 2
        assert add_block(session, block(example, GOOD)) == 0
    assert stored(db) == GOOD
    with db.read() as session:
        score = session.exec(select(Score)).first()
        assert score is not None
        assert (score.origin, score.job_id) == ("imported", None)


@pytest.mark.parametrize("acquired", [True, False])
def test_an_imported_score_never_changes_one_that_is_there(db: Database, example: Example, acquired: bool):
    with db.begin() as session:
        add_scores(session, rows(example, GOOD, Origin.ACQUIRED if acquired else Origin.IMPORTED))
    changed = [0.0, 1.0, 0.75, 0.25, 1.0]
    message = "method 'first' already has score 0.5 on prompt 'p2', the new one says 0.75"
    with pytest.raises(BadInputError, match=message), db.begin() as session:
        add_block(session, block(example, changed))
    with pytest.raises(BadInputError, match=message), db.begin() as session:
        add_scores(session, rows(example, changed, Origin.IMPORTED))
    assert stored(db) == GOOD


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_values_outside_the_range_are_refused(db: Database, example: Example, value: float):
    for add, scores in ((add_scores, rows), (add_block, block)):
        with pytest.raises(BadInputError, match=r"is outside \[0, 1\]"), db.begin() as session:
            add(session, scores(example, [0.5, value]))
    assert stored(db) == []


# --- matrices ----------------------------------------------------------------------------------------------

VALUES = np.array([[0, 1, np.nan, 0.5], [np.nan, 1, 1, 0.25], [1, 0, 0, np.nan]], dtype=np.float32)


@pytest.fixture
def filled(db: Database, tmp_path: Path) -> Database:
    folder = write_matrix_folder(tmp_path / "in", VALUES, datasets=["x", "x", "y", "x"])
    import_matrix_folder(db, folder, "b")
    return db


def load(db: Database, cache: Path | None = None) -> StoredMatrix:
    with db.read() as session:
        return load_matrix(session, catalog.find_benchmark(session, "b"), cache)


def same(a: StoredMatrix, b: StoredMatrix) -> bool:
    pairs = [
        (a.matrix.values, b.matrix.values),
        (a.method_pks, b.method_pks),
        *((vars(a.columns)[name], vars(b.columns)[name]) for name in vars(a.columns)),
    ]
    named = (a.matrix.method_ids, a.matrix.prompt_ids) == (b.matrix.method_ids, b.matrix.prompt_ids)
    return named and all(
        np.array_equal(x, y, equal_nan=True) if getattr(x, "dtype", None) == np.float32 else np.all(x == y)
        for x, y in pairs
    )


def test_a_matrix_has_its_columns_in_the_order_of_datasets(filled: Database):
    found = load(filled)
    assert found.matrix.prompt_ids == ("p0", "p1", "p3", "p2")
    assert found.matrix.method_ids == ("m0", "m1", "m2")
    assert np.array_equal(found.matrix.values, VALUES[:, [0, 1, 3, 2]], equal_nan=True)
    assert found.matrix.weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    found.matrix.check()


def test_rows_are_those_of_the_matrix(filled: Database):
    found = load(filled)
    with filled.read() as session:
        values = load_rows(session, found.columns, found.method_pks[[2, 0]].tolist())
    assert np.array_equal(values, found.matrix.values[[2, 0]].astype(np.float64), equal_nan=True)


def test_the_cache_answers_until_a_score_comes(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "cache"
    fresh = load(filled, cache)
    reads = []
    read = matrices.load_columns
    monkeypatch.setattr(matrices, "load_columns", lambda *a: reads.append(1) or read(*a))
    assert same(load(filled, cache), fresh)
    assert reads == []
    with filled.begin() as session:
        columns = fresh.columns
        row = (columns.dataset_pks[0], columns.scorer_pks[0], fresh.method_pks[1], columns.prompt_pks[0])
        add_scores(session, [(*map(int, row), 1.0, "acquired", None)])
        bump_revision(session, columns.benchmark_id)
    assert load(filled, cache).matrix.values[1, 0] == 1.0
    assert reads == [1]


def test_the_cache_is_stale_once_there_are_new_prompts(filled: Database, tmp_path: Path):
    cache = tmp_path / "cache"
    load(filled, cache)
    more = write_matrix_folder(tmp_path / "more", np.ones((1, 6), np.float32), datasets=["x", "x", "y"] * 2)
    with pytest.raises(BadInputError):  # p0 stands for 0 already
        import_matrix_folder(filled, more, "b")
    assert load(filled, cache).matrix.n_prompts == 4
    wider = np.concatenate([VALUES, np.ones((3, 2), np.float32)], axis=1)
    more = write_matrix_folder(tmp_path / "wider", wider, datasets=["x", "x", "y", "x", "y", "z"])
    import_matrix_folder(filled, more, "b")
    assert load(filled, cache).matrix.n_prompts == 6
    assert same(load(filled, cache), load(filled))


@pytest.mark.parametrize("damage", [b"", b"half a file", None])
def test_a_damaged_cache_is_made_anew(filled: Database, tmp_path: Path, damage: bytes | None):
    cache = tmp_path / "cache"
    fresh = load(filled, cache)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-100] if damage is None else damage)
    assert same(load(filled, cache), fresh)


def test_a_benchmark_without_prompts_says_what_to_do(db: Database):
    with db.begin() as session:
        catalog.add_benchmark(session, "b")
    with pytest.raises(BadInputError, match="has no prompts"):
        load(db)


def test_a_benchmark_without_scores_has_no_rows(db: Database, example: Example):
    with db.read() as session:
        found = load_matrix(session, catalog.find_benchmark(session, "small"))
    assert found.matrix.values.shape == (0, 12)
