import csv
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from assay.errors import BadInputError
from assay.matrix import ScoreType
from assay.matrix_folder import read_matrix_folder
from tests.data import real_matrix


def write_folder(folder: Path, scores=None, prompts=None, models=None, compress=False) -> Path:
    scores = np.array([[1, 0, -1], [0, 1, 1]], dtype=np.int8) if scores is None else scores
    prompts = (
        [{"id": f"p{j}", "dataset": "ab"[j > 0], "text": f"question {j}"} for j in range(3)]
        if prompts is None
        else prompts
    )
    models = (
        [{"model": "m0", "split": "train"}, {"model": "m1", "split": "test"}] if models is None else models
    )
    np.savez_compressed(folder / "scores.npz", scores=scores)
    text = "".join(json.dumps(prompt) + "\n" for prompt in prompts)
    if compress:
        (folder / "prompts.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    else:
        (folder / "prompts.jsonl").write_text(text)
    with (folder / "models.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(models[0]))
        writer.writeheader()
        writer.writerows(models)
    return folder


@pytest.mark.parametrize("compress", [False, True])
def test_reads_scores_prompts_and_models(tmp_path, compress):
    folder = read_matrix_folder(write_folder(tmp_path, compress=compress))
    np.testing.assert_array_equal(folder.matrix.values, [[1, 0, np.nan], [0, 1, 1]])
    assert folder.matrix.method_ids == ("m0", "m1")
    assert folder.matrix.datasets == ("a", "b")
    assert folder.texts == ("question 0", "question 1", "question 2")
    np.testing.assert_allclose(folder.matrix.weights, [0.5, 0.25, 0.25])
    assert folder.split("train").tolist() == [0]
    assert folder.split("test").tolist() == [1]
    assert folder.outputs() == {}


def test_plain_mean_over_prompts(tmp_path):
    weights = read_matrix_folder(write_folder(tmp_path), weighting="prompt").matrix.weights
    np.testing.assert_allclose(weights, 1 / 3)


def test_real_scores_with_nan_for_missing(tmp_path):
    scores = np.array([[0.25, np.nan, 1.0], [0.5, 0.0, -0.0]])
    folder = read_matrix_folder(write_folder(tmp_path, scores=scores))
    np.testing.assert_allclose(folder.matrix.values, scores)
    assert folder.matrix.score_types[0] is ScoreType.REAL


def test_all_rows_belong_to_any_split_where_there_is_no_split_column(tmp_path):
    folder = read_matrix_folder(write_folder(tmp_path, models=[{"model": "m0"}, {"model": "m1"}]))
    assert folder.split("train").tolist() == [0, 1]


def test_reads_outputs(tmp_path):
    write_folder(tmp_path)
    line = json.dumps({"model": "m1", "outputs": ["x", None, "z"]}) + "\n"
    (tmp_path / "outputs.jsonl.xz").write_bytes(lzma.compress(line.encode()))
    assert read_matrix_folder(tmp_path).outputs() == {"m1": ("x", None, "z")}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"model": "m9", "outputs": ["x", "y", "z"]}], "unknown"),
        ([{"model": "m1", "outputs": ["x"]}], "expected 3 outputs"),
        ([{"model": "m1", "outputs": ["x"] * 3}] * 2, "given twice"),
    ],
)
def test_refuses_bad_outputs(tmp_path, outputs, message):
    write_folder(tmp_path)
    (tmp_path / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in outputs))
    with pytest.raises(BadInputError, match=message):
        read_matrix_folder(tmp_path).outputs()


@pytest.mark.parametrize("missing", ["scores.npz", "prompts.jsonl", "models.csv"])
def test_names_the_missing_file(tmp_path, missing):
    (write_folder(tmp_path) / missing).unlink()
    with pytest.raises(BadInputError, match=missing):
        read_matrix_folder(tmp_path)


def prompt(j: int, **change):
    return {"id": f"p{j}", "dataset": "a", "text": "t", **change}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros((2, 2), dtype=np.int8)}, "2 x 2"),
        ({"scores": np.zeros(3)}, "numeric matrix"),
        ({"scores": np.array([["x"] * 3] * 2)}, "numeric matrix"),
        ({"scores": np.full((2, 3), 2, dtype=np.int8)}, r"outside \[0, 1\]"),
        ({"scores": np.full((2, 3), np.inf)}, "infinite"),
        ({"models": [{"model": "m0"}, {"model": "m0"}]}, "'m0' occurs twice"),
        ({"models": [{"model": "m0"}, {"model": ""}]}, "line 3.*empty"),
        ({"models": [{"name": "m0"}, {"name": "m1"}]}, "no column 'model'"),
        ({"prompts": [prompt(0), prompt(1), prompt(1)]}, "'p1' occurs twice"),
        ({"prompts": [prompt(0), prompt(1), prompt(2, dataset=None)]}, "line 3.*'dataset' is missing"),
        ({"prompts": [prompt(0), prompt(1), [1]]}, "line 3.*JSON object"),
    ],
)
def test_refuses_what_does_not_fit(tmp_path, change, message):
    with pytest.raises(BadInputError, match=message):
        read_matrix_folder(write_folder(tmp_path, **change))


def test_refuses_broken_files(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("{broken\n")
    with pytest.raises(BadInputError, match="line 1: not JSON"):
        read_matrix_folder(tmp_path)
    (tmp_path / "scores.npz").write_bytes(b"not an archive")
    with pytest.raises(BadInputError, match=r"scores\.npz cannot be read"):
        read_matrix_folder(tmp_path)
    with pytest.raises(BadInputError, match="no folder"):
        read_matrix_folder(tmp_path / "absent")


def test_refuses_an_array_that_is_not_called_scores(tmp_path):
    write_folder(tmp_path)
    np.savez(tmp_path / "scores.npz", other=np.zeros((2, 3)))
    with pytest.raises(BadInputError, match="no array named 'scores'"):
        read_matrix_folder(tmp_path)


@pytest.mark.data
def test_reads_the_real_matrices():
    openllm = real_matrix("openllm")
    assert openllm.matrix.values.shape == (1600, 1075)
    assert len(openllm.split("train")) == 1300
    assert len(openllm.split("test")) == 300
    alpaca = real_matrix("alpacaeval", "prompt")
    assert int((~alpaca.matrix.observed).sum()) == 10
    assert len(alpaca.outputs()) == 24
