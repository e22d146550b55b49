"""How much comparisons hang on the template: spread, changed rankings, Kendall's W; arrays and command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.cli import app
from agent.sensitivity import changed_rankings, kendalls_w, sensitivity
from assay.errors import BadInputError
from assay.settings import Settings
from storage import catalog
from storage.matrices import load_columns
from storage.scores import ScoreRow, add_scores
from storage.templates import add_template, method_for
from tests.world import BENCHMARK, World


def test_kendalls_w_of_known_cases() -> None:
    agree = np.array([[1, 2, 3, 4], [10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4]])
    assert kendalls_w(agree) == pytest.approx(1.0)
    assert kendalls_w([[1, 2, 3], [3, 2, 1]]) == pytest.approx(0.0)
    # rank sums 4, 6, 11, 9 of three rankers: S = 29, W = 12 * 29 / (9 * 60)
    assert kendalls_w([[1, 2, 4, 3], [1, 3, 4, 2], [2, 1, 3, 4]]) == pytest.approx(12 * 29 / 540)


def test_kendalls_w_counts_ties_and_leaves_out_who_sees_no_difference() -> None:
    assert kendalls_w([[1, 1, 2], [5, 5, 9]]) == pytest.approx(1.0)
    assert kendalls_w([[1, 2, 3], [1, 2, 3], [7, 7, 7]]) == pytest.approx(1.0)
    assert kendalls_w([[1, 1], [2, 2]]) == 0.0
    with pytest.raises(BadInputError, match="at least two objects"):
        kendalls_w([[1.0]])


def test_rankings_that_change() -> None:
    table = np.array([[0.9, 0.5], [0.8, 0.6], [0.4, 0.7], [0.9, 0.2]])
    assert changed_rankings(table) == 0.25
    found = sensitivity(table, ["a", "b"], ["t1", "t2", "t3", "t4"])
    np.testing.assert_allclose(found.spread, [0.5, 0.5])
    assert found.agreement is not None
    with pytest.raises(BadInputError, match="fewer than two templates"):
        sensitivity(np.full((2, 1), np.nan), ["a"], ["x", "y"])


def test_command_over_templates_and_over_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"ASSAY_{name.upper()}", raising=False)
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path / "data"))
    world = World.open(tmp_path).with_history()
    names = ["m16", "m17"]
    for name in names:
        world.add_model(name)
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        columns = load_columns(session, benchmark)
        for t, share in (("one", (0.9, 0.3)), ("two", (0.2, 0.8))):
            template, _ = add_template(session, t, f"{t}: {{text}}")
            for name, right in zip(names, share, strict=True):
                method = method_for(session, catalog.find_model(session, name), template)
                rows = [
                    ScoreRow(
                        int(columns.dataset_pks[d]),
                        int(columns.scorer_pks[d]),
                        method.id or 0,
                        int(columns.prompt_pks[j]),
                        float(j < right * 36),
                    ).astuple()
                    for j, d in enumerate(columns.dataset_index)
                ]
                add_scores(session, rows)
    done = CliRunner().invoke(app, ["template", "sensitivity", "--benchmark", BENCHMARK, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["templates"]) == {"one", "two"}
    assert found["changed_rankings"] == 0.5
    assert found["kendalls_w"] == pytest.approx(0.0)  # each model has its own best template
    assert set(found["kendalls_w_of_subjects"]) == set(names)
    assert {row["model"] for row in found["models"]} == set(names)
    assert (
        "changes in 50% of 2 templates"
        in CliRunner().invoke(app, ["template", "sensitivity", "--benchmark", BENCHMARK]).stdout
    )
    alone = CliRunner().invoke(
        app, ["template", "sensitivity", "--benchmark", BENCHMARK, "--benchmark", BENCHMARK]
    )
    assert alone.exit_code == 2
