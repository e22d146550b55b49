from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from sqlmodel import col, select

from assay.errors import BadInputError
from assay.matrix_folder import read_matrix_folder
from storage import catalog, events
from storage.database import Database
from storage.exporting import export_matrix_folder
from storage.importing import import_long_table, import_matrix_folder
from storage.matrices import load_matrix
from storage.tables import Dataset, Output, Prompt
from tests.data import real_matrix
from tests.storage.example import small_benchmark, write_matrix_folder

BINARY = np.array([[0, 1, 1], [1, -1, 0], [1, 1, 1]], dtype=np.int8)
REAL = np.array([[0.5, 1, np.nan], [0, 0.25, 1]])
COUNTED = ("benchmark", "dataset", "prompt", "model", "method", "score", "output", "event", "scorer")


def counts(db: Database) -> dict[str, int]:
    with db.read() as session:
        query = "SELECT count(*) FROM {}"
        return {t: session.connection().execute(text(query.format(t))).scalar_one() for t in COUNTED}


def kinds(db: Database) -> list[str]:
    with db.read() as session:
        return [event.kind for event in reversed(events.recent(session))]


def values(db: Database, name: str = "b") -> np.ndarray:
    with db.read() as session:
        return load_matrix(session, catalog.find_benchmark(session, name)).matrix.values


def table(path: Path, *rows: str, header: str = "model,dataset,prompt_id,score") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


# --- matrix folders ----------------------------------------------------------------------------------------


def test_a_folder_is_imported_once(db: Database, tmp_path: Path):
    folder = write_matrix_folder(tmp_path / "in", BINARY, datasets=["x", "y", "x"], outputs=True)
    report = import_matrix_folder(db, folder, "b")
    assert (report.models, report.models_new, report.prompts, report.prompts_new) == (3, 3, 3, 3)
    assert (report.scores_new, report.scores_known, report.outputs_new, report.skipped) == (8, 0, 6, 0)
    assert kinds(db) == ["prompts.added", "scores.imported"]
    before = counts(db)
    again = import_matrix_folder(db, folder, "b")
    assert (again.models_new, again.prompts_new, again.scores_new, again.outputs_new) == (0, 0, 0, 0)
    assert again.scores_known == 8
    assert counts(db) == before


def test_what_is_stored_is_what_the_folder_says(db: Database, tmp_path: Path):
    folder = write_matrix_folder(tmp_path / "in", REAL, datasets=["x", "x", "y"], outputs=True)
    import_matrix_folder(db, folder, "b")
    assert np.array_equal(values(db), REAL.astype(np.float32), equal_nan=True)
    with db.read() as session:
        model = catalog.find_model(session, "m1")
        assert (model.backend, model.attributes) == ("imported", {"split": "train", "family": "llama"})
        datasets = session.exec(select(Dataset).order_by(col(Dataset.id))).all()
        assert [(d.name, d.score_type, d.weight) for d in datasets] == [("x", "real", 1), ("y", "binary", 1)]
        assert [p.text for p in session.exec(select(Prompt).order_by(col(Prompt.id)))] == [
            f"prompt number {j}" for j in range(3)
        ]
        assert session.exec(select(Output.text).order_by(col(Output.id))).first() == "0 to 1"
        added = events.recent(session)[1]
        assert added.payload["added"] == 3
        assert added.payload["benchmark"] == "b"
        assert added.payload["prompts_revision"] == catalog.find_benchmark(session, "b").prompts_revision


def test_only_the_chosen_rows_are_imported(db: Database, tmp_path: Path):
    folder = write_matrix_folder(tmp_path / "in", BINARY, splits=["train", "test", "train"])
    report = import_matrix_folder(db, folder, "b", rows="train")
    assert (report.models, report.skipped) == (2, 1)
    assert np.array_equal(values(db), BINARY[[0, 2]])
    report = import_matrix_folder(db, folder, "b", rows="test")
    assert (report.models_new, report.scores_new, report.prompts_new) == (1, 2, 0)
    assert kinds(db) == ["prompts.added", "scores.imported", "scores.imported"]
    with pytest.raises(BadInputError, match=r"models\.csv: no row has split 'dev'") as caught:
        import_matrix_folder(db, folder, "b", rows="dev")
    assert "test, train" in caught.value.hint


@pytest.mark.parametrize("weighting", ["dataset", "prompt"])
def test_weights_are_equal_by_dataset_or_by_prompt(db: Database, tmp_path: Path, weighting):
    folder = write_matrix_folder(tmp_path / "in", BINARY, datasets=["x", "y", "x"])
    import_matrix_folder(db, folder, "b", weighting=weighting)
    with db.read() as session:
        stored = load_matrix(session, catalog.find_benchmark(session, "b")).matrix
    wanted = {"dataset": [1 / 4, 1 / 4, 1 / 2], "prompt": [1 / 3] * 3}[weighting]
    assert stored.weights == pytest.approx(wanted)  # columns: x, x, y


def test_a_change_of_weights_alone_makes_the_cache_stale(db: Database, tmp_path: Path):
    folder = write_matrix_folder(tmp_path / "in", BINARY, datasets=["x", "y", "x"])
    for weighting, first in (("dataset", 1 / 4), ("prompt", 1 / 3)):
        import_matrix_folder(db, folder, "b", weighting=weighting)
        with db.read() as session:
            stored = load_matrix(session, catalog.find_benchmark(session, "b"), tmp_path / "cache")
        assert stored.matrix.weights[0] == pytest.approx(first)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scores": np.array([[0, 1, 0], [1, -1, 0], [1, 1, 1]])}, "already has score 1 on prompt 'p2'"),
        ({"scores": np.abs(BINARY) * 0.5}, "holds binary scores"),
        ({"texts": ["prompt number 0", "new", "prompt number 2"]}, "prompt id 'p1' of dataset 'all'"),
    ],
)
def test_a_folder_that_contradicts_changes_nothing(db: Database, tmp_path: Path, changed, message):
    import_matrix_folder(db, write_matrix_folder(tmp_path / "in", BINARY), "b")
    before = counts(db)
    # One more model and prompt, which must not be left behind.
    scores = np.pad(changed.get("scores", BINARY), ((0, 1), (0, 1)), constant_values=1)
    texts = [*changed.get("texts", [f"prompt number {j}" for j in range(3)]), "one more"]
    folder = write_matrix_folder(tmp_path / "other", scores, texts=texts)
    with pytest.raises(BadInputError, match=message) as caught:
        import_matrix_folder(db, folder, "b")
    assert str(folder) in str(caught.value)
    assert caught.value.hint
    assert counts(db) == before


def test_bad_outputs_leave_nothing_behind(db: Database, tmp_path: Path):
    folder = write_matrix_folder(tmp_path / "in", BINARY, outputs=True)
    with (folder / "outputs.jsonl").open("a") as file:
        file.write('{"model": "unknown", "outputs": []}\n')
    with pytest.raises(BadInputError, match="line 4"):
        import_matrix_folder(db, folder, "b")
    assert set(counts(db).values()) == {0}


def test_an_unknown_weighting_is_refused(db: Database, tmp_path: Path):
    with pytest.raises(BadInputError, match="unknown weighting 'models'"):
        import_matrix_folder(db, tmp_path, "b", weighting="models")  # type: ignore[arg-type]


def test_scores_join_a_benchmark_that_has_its_own_scorer(db: Database, tmp_path: Path):
    example = small_benchmark(db)
    file = table(tmp_path / "t.csv", "first,sums,p0,1", "old,sums,p1,0", "old,sums,p2,1")
    report = import_long_table(db, file, "small")
    assert (report.models_new, report.prompts_new, report.scores_new) == (1, 0, 3)
    found = values(db, "small")
    assert found.shape == (2, len(example.prompt_ids))
    assert kinds(db)[-1] == "scores.imported"
    assert "prompts.added" not in kinds(db)


# --- long tables -------------------------------------------------------------------------------------------

HEADER = "model,dataset,prompt_id,score,prompt,output,cost,remark"
ROWS = (
    'a,x,007,1,"What,\nnow?",yes,0.5,r',
    "a,y,007,0.25,Where?,,,",
    "b,x,007, 0 ,,no,,",
    "",
    "b,y,1,1,Who?,me,0,",
)


def test_a_csv_file_is_imported_once(db: Database, tmp_path: Path):
    file = table(tmp_path / "t.csv", *ROWS, header=HEADER)
    report = import_long_table(db, file, "b")
    assert (report.models_new, report.prompts_new, report.scores_new, report.outputs_new) == (2, 3, 4, 3)
    assert report.notes == ("columns not used: remark",)
    expected = [[1, 0.25, np.nan], [0, np.nan, 1]]  # x/007, y/007, y/1
    assert np.array_equal(values(db), np.array(expected, np.float32), equal_nan=True)
    with db.read() as session:
        prompts = session.exec(select(Prompt).order_by(col(Prompt.id))).all()
        assert [p.key for p in prompts] == ["007", "007", "1"]
        assert [p.text for p in prompts] == ["What,\nnow?", "Where?", "Who?"]
        outputs = session.exec(select(Output).order_by(col(Output.id))).all()
        assert [(o.text, o.details) for o in outputs] == [
            ("yes", {"cost_usd": 0.5}),
            ("no", {}),
            ("me", {"cost_usd": 0.0}),
        ]
    before = counts(db)
    assert import_long_table(db, file, "b").scores_known == 4
    assert counts(db) == before


def test_a_parquet_file_says_the_same(db: Database, tmp_path: Path):
    columns = {
        "model": pa.array(["a", "a", "b"]).dictionary_encode(),
        "dataset": ["x", "y", "x"],
        "prompt_id": [7, 8, 7],
        "score": pa.array([1, 0, 1], pa.int8()),
        "prompt": ["one", None, None],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    report = import_long_table(db, tmp_path / "t.parquet", "b")
    assert (report.prompts_new, report.scores_new) == (2, 3)
    assert np.array_equal(values(db), [[1, 0], [1, np.nan]], equal_nan=True)


def test_an_exact_repetition_is_skipped(db: Database, tmp_path: Path):
    report = import_long_table(db, table(tmp_path / "t.csv", "a,x,1,1", "a,x,1,1.0", "a,x,2,0"), "b")
    assert (report.scores_new, report.skipped) == (2, 1)


def test_a_cost_without_an_output_is_noted(db: Database, tmp_path: Path):
    file = table(tmp_path / "t.csv", "a,x,1,1,0.5", header="model,dataset,prompt_id,score,cost")
    assert "cost" in import_long_table(db, file, "b").notes[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a,x,1,1", "a,x,2,nan"], "line 3, column 'score': empty or not a number"),
        (["a,x,1,"], "line 2, column 'score': empty"),
        (["a,x,1,1", "", "a,x,2,inf"], r"line 4, column 'score': inf is outside \[0, 1\]"),
        (["a,x,1,1.5"], r"line 2, column 'score': 1\.5 is outside"),
        (["a,x,1,-0.5"], "line 2, column 'score': -0.5 is outside"),
        (["a,x,1,1", "a,x,2,good"], "line 3, column 'score': 'good' is not a number"),
        (["a,x,1,1", ",x,2,1"], "line 3, column 'model': empty"),
        (["a,,1,1"], "line 2, column 'dataset': empty"),
        (["a,x,,1"], "line 2, column 'prompt_id': empty"),
        (["a,x,1,1", "b,x,1,0", "a,x,1,0"], "line 4, column 'score': model 'a' has score 1"),
        (["a,x,1"], "cannot be read"),
        ([], "has no rows"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_stored(db: Database, tmp_path: Path, rows, message):
    file = table(tmp_path / "t.csv", *rows)
    with pytest.raises(BadInputError, match=message) as caught:
        import_long_table(db, file, "b")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(counts(db).values()) == {0}


def test_a_prompt_id_with_two_texts_is_named(db: Database, tmp_path: Path):
    header = "model,dataset,prompt_id,score,prompt"
    rows = ['a,x,1,1,"on\ntwo lines"', "a,y,1,1,other dataset", "b,x,1,1,other"]
    file = table(tmp_path / "t.csv", *rows, header=header)
    with pytest.raises(BadInputError, match="line 5, column 'prompt': prompt id '1' has another text"):
        import_long_table(db, file, "b")


@pytest.mark.parametrize("cost", ["-1", "inf", "much"])
def test_a_bad_cost_is_named(db: Database, tmp_path: Path, cost: str):
    file = table(tmp_path / "t.csv", f"a,x,1,1,{cost}", header="model,dataset,prompt_id,score,cost")
    with pytest.raises(BadInputError, match="line 2, column 'cost'"):
        import_long_table(db, file, "b")


@pytest.mark.parametrize("name", ["model", "dataset", "prompt_id", "score"])
def test_a_missing_column_lists_what_is_there(db: Database, tmp_path: Path, name: str):
    columns = [c for c in ("model", "dataset", "prompt_id", "score") if c != name]
    file = table(tmp_path / "t.csv", "1,1,1", header=",".join(columns))
    with pytest.raises(BadInputError, match=f"column '{name}' is missing.*: {', '.join(columns)}") as caught:
        import_long_table(db, file, "b")
    assert "a long table has the columns" in caught.value.hint


def test_a_bad_row_of_a_parquet_file_is_named(db: Database, tmp_path: Path):
    columns = {"model": ["a", None], "dataset": ["x", "x"], "prompt_id": ["1", "2"], "score": [1.0, 0.0]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(BadInputError, match="row 2, column 'model': empty"):
        import_long_table(db, tmp_path / "t.parquet", "b")
    pq.write_table(pa.table({**columns, "model": [["a"], ["b"]]}), tmp_path / "t.parquet")
    with pytest.raises(BadInputError, match="column 'model': expected text, got list"):
        import_long_table(db, tmp_path / "t.parquet", "b")


@pytest.mark.parametrize(
    ("name", "content"),
    [("t.parquet", b"no parquet"), ("t.csv", b""), ("t.csv", b"model,\xff\xfe\n1,2\n"), ("t.xlsx", b"")],
)
def test_a_file_of_another_kind_is_refused(db: Database, tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputError, match=name):
        import_long_table(db, tmp_path / name, "b")


def test_an_absent_file_is_named(db: Database, tmp_path: Path):
    with pytest.raises(BadInputError, match="no file at"):
        import_long_table(db, tmp_path / "absent.csv", "b")


def test_a_model_may_be_called_anything(db: Database, tmp_path: Path):
    file = table(tmp_path / "t.csv", '"x"" OR 1=1 --",d,1,1', "naïve/模型,d,1,0")
    assert import_long_table(db, file, "b").scores_new == 2


# --- export ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", [BINARY, REAL])
def test_an_exported_folder_is_the_imported_one(db: Database, tmp_path: Path, scores):
    folder = write_matrix_folder(tmp_path / "in", scores, datasets=["x", "x", "y"], outputs=True)
    import_matrix_folder(db, folder, "b")
    report = export_matrix_folder(db, "b", tmp_path / "out")
    assert (report.models, report.prompts) == scores.shape
    assert report.outputs == 2 * len(scores)
    before, after = read_matrix_folder(folder), read_matrix_folder(tmp_path / "out")
    assert np.array_equal(before.matrix.values, after.matrix.values, equal_nan=True)
    assert before.matrix.method_ids == after.matrix.method_ids
    assert before.matrix.prompt_ids == after.matrix.prompt_ids
    assert before.matrix.datasets == after.matrix.datasets
    assert (before.models, before.texts) == (after.models, after.texts)
    assert before.outputs() == after.outputs()
    again = import_matrix_folder(db, tmp_path / "out", "b")
    assert (again.models_new, again.prompts_new, again.scores_new, again.outputs_new) == (0, 0, 0, 0)


def test_ids_that_two_datasets_share_are_told_apart(db: Database, tmp_path: Path):
    import_long_table(db, table(tmp_path / "t.csv", "a,x,1,1", "a,y,1,0", "a,y,2,0"), "b")
    export_matrix_folder(db, "b", tmp_path / "out")
    assert read_matrix_folder(tmp_path / "out").matrix.prompt_ids == ("x/1", "y/1", "y/2")


def test_prompts_are_exported_with_their_fields(db: Database, tmp_path: Path):
    small_benchmark(db, n_prompts=1)
    with db.begin() as session:
        session.connection().execute(
            text("UPDATE prompt SET fields = :f"), {"f": json.dumps({"target": "0", "hint": "none"})}
        )
    export_matrix_folder(db, "small", tmp_path / "out")
    line = json.loads((tmp_path / "out" / "prompts.jsonl").read_text())
    assert (line["target"], line["fields"]) == ("0", {"hint": "none"})
    assert not (tmp_path / "out" / "outputs.jsonl.xz").exists()


def test_an_export_never_overwrites(db: Database, tmp_path: Path):
    import_matrix_folder(db, write_matrix_folder(tmp_path / "in", BINARY), "b")
    with pytest.raises(BadInputError, match="is there already"):
        export_matrix_folder(db, "b", tmp_path / "in")
    with pytest.raises(BadInputError, match="cannot be written"):
        export_matrix_folder(db, "b", tmp_path / "in" / "models.csv" / "out")
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["in"]


@pytest.mark.data
@pytest.mark.slow
def test_real_scores_come_back_as_they_were(db: Database, tmp_path: Path):
    folder = real_matrix("alpacaeval")
    report = import_matrix_folder(db, folder.path, "b", weighting="prompt")
    assert (report.models, report.scores_new, report.outputs_new) == (58, 46680, 19316)
    with db.read() as session:
        stored = load_matrix(session, catalog.find_benchmark(session, "b")).matrix
    order = [stored.prompt_ids.index(key) for key in folder.matrix.prompt_ids]
    assert np.array_equal(stored.values[:, order], folder.matrix.values, equal_nan=True)
    assert stored.weights == pytest.approx(1 / 805)
