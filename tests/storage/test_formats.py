"""Importers of other tools' files: what they read, skip and why; the tools' own files where there are any."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import BadInputError, UsageError
from assay.matrix_folder import read_matrix_folder
from storage import catalog
from storage.database import Database
from storage.exporting import export_matrix_folder
from storage.importing import (
    IMPORTERS,
    ImportOptions,
    ImportReport,
    Rows,
    format_of,
    import_path,
    import_rows,
)
from storage.importing._inspect import take_log
from storage.matrices import load_matrix
from storage.tables import Dataset, Model, Output, Prompt, Scorer
from tests.data import FIXTURES
from tests.storage.test_importing import counts, table, values

PLAIN = ImportOptions()


def load(db: Database, path: Path, name: str = "b", **options: Any) -> ImportReport:
    return import_path(db, path, name, ImportOptions(**options))


def rows(db: Database, kind: Any) -> list[Any]:
    from sqlmodel import select

    with db.read() as session:
        return list(session.exec(select(kind)).all())


def fixture(name: str) -> Path:
    path = FIXTURES / name
    if not path.is_file():
        pytest.skip(f"needs ../shared/fixtures/{name}")
    return path


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_lines(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


# --- lm-eval -----------------------------------------------------------------------------------------------

SAMPLES = "samples_gsm8k_2026-11-01T10-00-00.000.jsonl"


def sample(i: int, score: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "doc_id": i,
        "doc": {"question": f"What is {i}?"},
        "doc_hash": f"h{i}",
        "arguments": {"gen_args_0": {"arg_0": f"shots {i}"}},
        "resps": [[f"answer {i}"]],
        "exact_match": score,
        **more,
    }


def test_a_real_lm_eval_log(db: Database) -> None:
    path = fixture("lm_eval_samples_winogrande_pythia-14m.jsonl")
    with pytest.raises(BadInputError, match="nothing names the model") as caught:
        load(db, path)
    assert "--model" in caught.value.hint
    assert set(counts(db).values()) == {0}
    report = load(db, path, model="pythia-14m", dataset="winogrande")
    assert (report.rows, report.scores_new, report.models_new, report.skipped) == (106, 106, 1, 0)
    assert report.notes == (f"{path.name}: scored by acc",)
    expected = [json.loads(line)["acc"] for line in path.read_text().splitlines()]
    assert np.nanmean(values(db)) == pytest.approx(np.mean(expected))
    assert load(db, path, model="pythia-14m", dataset="winogrande").scores_known == 106


def test_the_model_is_in_the_results_file_or_the_folder(db: Database, tmp_path: Path) -> None:
    first = write_lines(tmp_path / "org__first" / SAMPLES, [sample(0), sample(1, 0.0)])
    second = write_lines(tmp_path / "second" / SAMPLES, [sample(1), sample(0)])
    write_json(second.with_name("results_2026-11-01T10-00-00.000.json"), {"model_name": "named/by-results"})
    report = load(db, tmp_path)
    assert (report.models, report.prompts, report.scores_new, report.outputs_new) == (2, 2, 4, 4)
    assert [m.name for m in rows(db, Model)] == ["org/first", "named/by-results"]
    assert [d.name for d in rows(db, Dataset)] == ["gsm8k"]
    assert values(db).tolist() == [[1, 0], [1, 1]]  # by document, whatever the order of the file
    assert [p.text for p in rows(db, Prompt)] == ["What is 0?", "What is 1?"]
    assert first.is_file()


def test_one_filter_and_one_row_per_document(db: Database, tmp_path: Path) -> None:
    entries = [
        sample(0, 0.0, filter="strict"),
        sample(0, 1.0, filter="flexible"),
        sample(1, None, filter="strict"),
        sample(1, float("nan"), filter="strict"),
        sample(2, 7, filter="strict"),
        sample(3, True, filter="strict"),
        sample(3, 0.0, filter="strict"),
    ]
    path = write_lines(tmp_path / "m" / SAMPLES, entries)
    report = load(db, path)
    assert report.reasons == {
        "filter 'flexible' is not the one taken ('strict')": 1,
        "no score in [0, 1]": 3,
        "the same document again": 1,
    }
    assert (report.rows, report.skipped, report.scores_new) == (7, 5, 2)
    assert values(db).tolist() == [[0, 1]]
    assert load(db, path, "other", filter="flexible").scores_new == 1


def test_the_row_s_own_metrics_come_first(db: Database, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "m" / SAMPLES, [sample(0, 0.0, acc=0.25, bleu=12.0, metrics=["bleu", "acc"])]
    )
    assert load(db, path).notes == (f"{SAMPLES}: scored by acc",)
    assert values(db).tolist() == [[0.25]]
    assert load(db, path, "c", metric="exact_match").scores_new == 1
    with pytest.raises(BadInputError, match="has no score") as caught:
        load(db, path, "d", metric="bleu")
    assert "no score in [0, 1] under 'bleu': 1" in caught.value.hint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: expected a JSON object"),
        ("{}", "line 2: neither 'doc_hash'"),
    ],
)
def test_a_wrong_line_is_named(db: Database, tmp_path: Path, line: str, said: str) -> None:
    path = write_lines(tmp_path / "m" / SAMPLES, [sample(0)])
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadInputError, match=said):
        load(db, path)
    assert set(counts(db).values()) == {0}


# --- AlpacaEval --------------------------------------------------------------------------------------------


def test_real_alpaca_eval_files(db: Database) -> None:
    outputs = load(db, fixture("alpaca_eval_model_outputs_claude-2.json"))
    assert (outputs.scores_new, outputs.outputs_new, outputs.rows) == (0, 120, 120)
    path = fixture("alpaca_eval_annotations_claude-2.json")
    report = load(db, path)
    assert (report.rows, report.scores_new, report.prompts_new, report.outputs_new) == (120, 120, 0, 0)
    assert report.notes == (
        "share of the win against gpt4_1106_preview, judged by weighted_alpaca_eval_gpt4_turbo",
    )
    preferences = [entry["preference"] for entry in json.loads(path.read_text())]
    assert np.mean(values(db)) == pytest.approx(np.mean(preferences) - 1, abs=1e-6)
    (dataset,) = rows(db, Dataset)
    assert (dataset.name, dataset.score_type) == ("helpful_base", "real")
    scorer = next(s for s in rows(db, Scorer) if s.id == dataset.scorer_id)
    assert scorer.params == {"judge": "weighted_alpaca_eval_gpt4_turbo", "reference": "gpt4_1106_preview"}


def verdict(i: int, preference: Any, **more: Any) -> dict[str, Any]:
    return {
        "instruction": f"Do {i}",
        "output_2": f"done {i}",
        "generator_1": "ref",
        "generator_2": "m",
        "annotator": "judge",
        "preference": preference,
        **more,
    }


def test_what_is_no_verdict_is_no_score(db: Database, tmp_path: Path) -> None:
    given_ = [1.0, 2.0, 1.25, None, 0, -1, 2.5, True, "2"]
    path = write_json(tmp_path / "annotations.json", [verdict(i, p) for i, p in enumerate(given_)])
    report = load(db, path)
    assert report.reasons == {"no verdict": 4, "a preference outside [1, 2]": 2}
    assert values(db).tolist() == [[0, 1, 0.25]]


def test_two_judges_never_meet(db: Database, tmp_path: Path) -> None:
    mixed = [verdict(0, 1.5), verdict(1, 1.5, annotator="other")]
    with pytest.raises(BadInputError, match="several kinds: judge against ref; other against ref"):
        load(db, write_json(tmp_path / "mixed.json", mixed))
    load(db, write_json(tmp_path / "a.json", mixed[:1]))
    with pytest.raises(BadInputError, match=r"holds scores by replay .*'judge'"):
        load(db, write_json(tmp_path / "b.json", mixed[1:]))
    assert len(rows(db, Prompt)) == 1


@pytest.mark.parametrize("content", [{}, [1], [{"preference": 1.5}], [{"generator": "m"}], []])
def test_other_json_is_refused(db: Database, tmp_path: Path, content: Any) -> None:
    with pytest.raises(BadInputError, match=r"x\.json"):
        load(db, write_json(tmp_path / "x.json", content))
    assert set(counts(db).values()) == {0}


# --- HELM --------------------------------------------------------------------------------------------------


def stat(name: str, mean: Any, **more: Any) -> dict[str, Any]:
    return {"name": {"name": name, "split": "test", **more}, "count": 1, "sum": mean, "mean": mean}


def helm_run(folder: Path, model: str, means: list[Any], **more: Any) -> Path:
    run = folder / f"mmlu:subject=law,model={model}"
    spec = {"name": f"mmlu:subject=law,model={model},data=x", "adapter_spec": {"model": f"org/{model}"}}
    write_json(run / "run_spec.json", spec)
    stats = [
        {"instance_id": f"id{i}", "train_trial_index": 0, "stats": [stat("n", 9), stat("exact_match", mean)]}
        for i, mean in enumerate(means)
    ]
    stats += [
        {"instance_id": "id0", "train_trial_index": 0, "perturbation": {"name": "typos"}, "stats": []},
        {"instance_id": "id0", "train_trial_index": 1, "stats": [stat("exact_match", 0.0)]},
        {"instance_id": "id0", "train_trial_index": 0, "stats": [stat("exact_match", 0.0)]},
    ]
    write_json(run / "per_instance_stats.json", stats)
    states = [
        {
            "instance": {"id": f"id{i}", "input": {"text": f"Question {i}"}},
            "train_trial_index": 0,
            "result": {"completions": [{"text": f"{model} says {i}"}]},
        }
        for i in range(len(means))
    ]
    write_json(run / "scenario_state.json", {"request_states": states})
    return run


def test_helm_run_folders(db: Database, tmp_path: Path) -> None:
    helm_run(tmp_path, "a", [1.0, 0.0, 0.5, "x"])
    helm_run(tmp_path, "b", [0.0, 1.0, 1.0, 1.0])
    report = load(db, tmp_path)
    assert (report.models, report.prompts, report.scores_new, report.outputs_new) == (2, 4, 7, 7)
    assert report.reasons == {
        "no score in [0, 1] under 'exact_match'": 1,
        "a perturbed instance": 2,
        "a further trial": 2,
        "the same instance again": 2,
    }
    assert report.rows == 14
    assert [m.name for m in rows(db, Model)] == ["org/a", "org/b"]
    assert [d.name for d in rows(db, Dataset)] == ["mmlu:subject=law,data=x"]
    assert [p.text for p in rows(db, Prompt)] == [f"Question {i}" for i in (0, 1, 2, 3)]
    assert rows(db, Output)[0].text == "a says 0"


def test_a_helm_run_without_a_usual_score_names_what_it_has(db: Database, tmp_path: Path) -> None:
    run = helm_run(tmp_path, "a", [1.0])
    write_json(run / "per_instance_stats.json", [{"instance_id": "id0", "stats": [stat("speed", 0.5)]}])
    with pytest.raises(BadInputError, match="usual statistics") as caught:
        load(db, run)
    assert "--metric: speed" in caught.value.hint
    assert load(db, run, metric="speed").scores_new == 1
    (run / "per_instance_stats.json").unlink()
    with pytest.raises(BadInputError, match="cannot be read"):
        load(db, run, "c")


# --- Inspect -----------------------------------------------------------------------------------------------


def inspect_log(samples: list[dict[str, Any]], status: str = "success") -> Any:
    made = [
        SimpleNamespace(
            id=s["id"],
            epoch=s.get("epoch", 1),
            error=s.get("error"),
            scores={name: SimpleNamespace(value=value) for name, value in s.get("scores", {}).items()},
            input=s.get("input", "What?"),
            output=SimpleNamespace(completion="so"),
        )
        for s in samples
    ]
    return SimpleNamespace(status=status, eval=SimpleNamespace(model="org/m", task="t"), samples=made)


def test_an_inspect_log(db: Database) -> None:
    chat = [SimpleNamespace(role="system", text="be brief"), SimpleNamespace(role="user", text="Why?")]
    log = inspect_log(
        [
            {"id": 1, "scores": {"match": "C", "other": "I"}},
            {"id": 2, "scores": {"match": "I"}, "input": chat},
            {"id": 3, "scores": {"match": "P"}},
            {"id": 3, "scores": {"match": "C"}, "epoch": 2},
            {"id": 4, "scores": {"match": "N"}},
            {"id": 5, "scores": {"match": 0.25}},
            {"id": 6, "scores": {"match": "maybe"}},
            {"id": 7, "scores": {"match": {"a": 1}}},
            {"id": 8, "error": "boom"},
            {"id": 9},
        ],
        status="error",
    )
    read = Rows("x.eval")
    take_log(read, "x.eval", log, model=None, dataset=None, scorer=None)
    report = import_rows(db, read, "b")
    assert values(db).tolist() == [[1, 0, 0.75, 0, 0.25]]
    assert report.reasons == {
        "a score that is no number in [0, 1] and none of C, I, P, N": 2,
        "the sample ended in an error": 1,
        "no score": 1,
        "a further epoch of a sample (its score is the mean)": 1,
    }
    assert report.rows == 10
    assert len(report.notes) == 2
    assert rows(db, Prompt)[1].text == "Why?"


def test_a_real_inspect_log(db: Database, tmp_path: Path) -> None:
    inspect_ai = pytest.importorskip("inspect_ai", reason="needs the extra: pip install 'assay[inspect]'")
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import match
    from inspect_ai.solver import solver

    @solver
    def answer():
        async def solve(state, generate):  # not `generate`: counting its tokens would need the network
            state.output = ModelOutput.from_content("mockllm/model", f"It is {state.epoch}")
            return state

        return solve

    samples = [Sample(id=f"s{i}", input=f"Say {i}", target=str(1 + i % 2)) for i in range(3)]
    task = inspect_ai.Task(dataset=samples, solver=answer(), scorer=match(), name="echo")
    inspect_ai.eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none", epochs=2)
    assert format_of(tmp_path) == format_of(next(tmp_path.glob("*.eval"))) == "inspect"
    report = load(db, tmp_path)
    assert (report.models, report.prompts, report.rows) == (1, 3, 6)
    assert values(db).tolist() == [[0.5, 0.5, 0.5]]
    assert rows(db, Output)[0].text == "It is 1"


def test_without_the_package_it_says_what_to_install(db: Database, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "inspect_ai.log", None)
    (tmp_path / "x.eval").write_bytes(b"")
    with pytest.raises(BadInputError, match="needs the package inspect-ai") as caught:
        load(db, tmp_path / "x.eval")
    assert "assay[inspect]" in caught.value.hint


# --- all ---------------------------------------------------------------------------------------------------


def test_the_format_is_seen(tmp_path: Path) -> None:
    for name, kind in (("t.csv", "long-table"), ("t.PARQUET", "long-table"), ("t.eval", "inspect")):
        (tmp_path / name).touch()
        assert format_of(tmp_path / name) == kind
    (tmp_path / "t.xyz").touch()
    with pytest.raises(UsageError, match="does not show its format") as caught:
        format_of(tmp_path / "t.xyz")
    assert "helm, inspect, lm-eval" in caught.value.hint
    with pytest.raises(BadInputError, match="no folder at"):
        format_of(tmp_path / "absent")


@pytest.mark.parametrize("kind", IMPORTERS.builtins)
def test_no_format_takes_what_is_not_its_own(db: Database, tmp_path: Path, kind: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00 no such thing")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "bytes", tmp_path / "folder", tmp_path / "absent"):
        with pytest.raises(BadInputError):
            import_path(db, path, "b", PLAIN, kind=kind)
    assert set(counts(db).values()) == {0}


def test_rows_are_chosen_in_matrix_folders_only(db: Database, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--rows"):
        load(db, table(tmp_path / "t.csv", "a,x,1,1"), rows="train")


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=8)
CELLS = st.dictionaries(
    st.tuples(NAMES, st.sampled_from(["x", "y"]), NAMES), st.floats(0, 1), min_size=1, max_size=12
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cells=CELLS)
def test_what_is_collected_is_what_is_stored(tmp_path_factory, migrated_sqlite, cells) -> None:
    folder = tmp_path_factory.mktemp("p")
    (folder / "assay.db").write_bytes(migrated_sqlite.read_bytes())
    db = Database(f"sqlite:///{folder / 'assay.db'}")
    read = Rows("made up")
    for (model, dataset, key), score in cells.items():
        read.add("a place", model=model, dataset=dataset, prompt_id=key, score=score)
    report = import_rows(db, read, "b")
    assert (report.rows, report.skipped, report.scores_new) == (len(cells), 0, len(cells))
    with db.read() as session:
        stored = load_matrix(session, catalog.find_benchmark(session, "b"))
    found = {
        (stored.matrix.method_ids[i], stored.columns.datasets[d], stored.columns.prompt_keys[j]): float(value)
        for i, row in enumerate(stored.matrix.values)
        for j, (value, d) in enumerate(zip(row, stored.columns.dataset_index, strict=True))
        if not math.isnan(value)
    }
    db.close()
    unique = {(m, d, k.removeprefix(f"{d}/")): v for (m, d, k), v in found.items()}
    assert len(unique) == len(cells)
    assert sorted(unique.values()) == pytest.approx(sorted(cells.values()), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(preference=st.none() | st.booleans() | st.integers(-3, 4) | st.floats() | st.text(max_size=3))
def test_any_preference_is_a_score_or_skipped(preference: Any) -> None:
    from unittest import mock

    from storage.importing import _alpaca_eval

    found = [verdict(0, 1.5), verdict(1, preference)]
    with mock.patch.object(_alpaca_eval, "json_file", return_value=found):
        read = _alpaca_eval.read_annotations(Path("x.json"))
    assert len(read) + sum(read.reasons.values()) == 2
    assert all(0 <= score <= 1 for score in read.table().numbers("score"))


def test_dataset_weights_survive_export_and_import(db: Database, tmp_path: Path) -> None:
    load(db, table(tmp_path / "t.csv", "a,x,1,1", "a,x,2,0", "a,x,3,1", "a,y,1,0"), weighting="prompt")
    export_matrix_folder(db, "b", tmp_path / "out")
    assert (tmp_path / "out" / "datasets.csv").read_text() == "dataset,weight\nx,3.0\ny,1.0\n"
    assert read_matrix_folder(tmp_path / "out").matrix.weights == pytest.approx([0.25] * 4)
    load(db, tmp_path / "out", "again")
    with db.read() as session:
        stored = [
            load_matrix(session, catalog.find_benchmark(session, name)).matrix for name in ("b", "again")
        ]
    assert stored[0].weights == pytest.approx(stored[1].weights)


@pytest.mark.parametrize("line", ["x,-1", "x,nan", "x,much", ",1", "x,1\nx,2"])
def test_wrong_weights_are_named(db: Database, tmp_path: Path, line: str) -> None:
    load(db, table(tmp_path / "t.csv", "a,x,1,1"))
    export_matrix_folder(db, "b", tmp_path / "out")
    (tmp_path / "out" / "datasets.csv").write_text("dataset,weight\n" + line + "\n")
    with pytest.raises(BadInputError, match=r"datasets\.csv, line"):
        load(db, tmp_path / "out", "again")
