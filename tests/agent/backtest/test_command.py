"""`assay backtest` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agent.backtest._report import markdown_table
from agent.commands.backtest import register
from assay.errors import UsageError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    app.callback()(lambda: None)
    return app


def test_prints_a_table_and_writes_results_and_plot(app: typer.Typer, matrix: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.png"
    arguments = f"backtest --matrix {matrix} --policy uniform --estimator aggregate --budgets 12,5 --seeds 2"
    result = CliRunner().invoke(
        app, [*arguments.split(), "--jobs", "1", "--out", str(out), "--plot", str(plot)]
    )
    assert result.exit_code == 0, result.output
    table = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert [line.split("|")[3].strip() for line in table] == ["budget", "---:", "5", "12"]
    document = json.loads(out.read_text())
    assert document["settings"]["budgets"] == [5, 12]
    assert len(document["results"]) == 4
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_prints_json_alone(app: typer.Typer, matrix: Path) -> None:
    arguments = f"backtest --matrix {matrix} --estimator aggregate --budgets 5 --seeds 1 --jobs 1 --json"
    result = CliRunner().invoke(app, arguments.split())
    assert json.loads(result.stdout)["results"][0]["budget"] == 5


def test_settings_of_a_policy_reach_it(app: typer.Typer, matrix: Path) -> None:
    arguments = f"backtest --matrix {matrix} --policy combinatorial --estimator linear-gaussian --budgets 5"
    given = ["--seeds", "1", "--jobs", "1", "--policy-settings", '{"combinatorial": {"limit_seconds": 0.0}}']
    result = CliRunner().invoke(app, [*arguments.split(), *given])
    assert isinstance(result.exception, UsageError)
    assert "would take about" in result.exception.message


@pytest.mark.parametrize(
    "wrong",
    [
        "--budgets 5,x",
        "--policy ,",
        "--weighting model",
        "--estimator nope",
        "--objective nope",
        "--policy-settings {",
        '--policy-settings {"ppo":{"updates":4}}',
        '--policy-settings {"uniform":{"updates":4}}',
    ],
)
def test_wrong_use_is_refused(app: typer.Typer, matrix: Path, wrong: str) -> None:
    result = CliRunner().invoke(app, ["backtest", "--matrix", str(matrix), *wrong.split()])
    assert isinstance(result.exception, UsageError)


def test_table_says_where_a_metric_is_not_defined() -> None:
    entry = {"policy": "p", "estimator": "e", "budget": 5, "seed": 0, "kendall_tau": None}
    assert markdown_table([entry]).splitlines()[-1] == "| p | e | 5 | - |"
