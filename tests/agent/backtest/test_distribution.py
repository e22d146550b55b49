"""Replaying the estimation of a score distribution through the same command as all backtests."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.backtest import BacktestSettings, run_backtest
from agent.backtest._report import markdown_table
from agent.cli import app
from assay.errors import UsageError
from tests.agent.backtest.conftest import write_matrix

METRICS = {"w1", "q05", "q25", "q50", "q75", "q95", "coverage", "mean_width", "fit_seconds"}


def settings(matrix: Path, **changes: object) -> BacktestSettings:
    given: dict[str, object] = {
        "objective": "distribution",
        "policies": ("balanced",),
        "budgets": (40, 170),
        "seeds": 2,
    }
    return BacktestSettings(str(matrix), **{**given, **changes})  # type: ignore[arg-type]


def test_one_entry_per_budget_and_seed_and_all_cells_leave_no_error(matrix: Path) -> None:
    document = run_backtest(settings(matrix, budgets=(40, 179)))  # 6 rows x 30 prompts, one missing
    assert document["settings"]["estimators"] == ["x-pirt"]
    entries = document["results"]
    assert len(entries) == 4
    assert all(set(entry) >= METRICS for entry in entries)
    assert all(entry["w1"] < 0.01 for entry in entries if entry["budget"] == 179)
    assert len(entries[0]["estimated"]) == len(entries[0]["true"]) == 6
    assert "estimated" not in markdown_table(entries)


def test_same_seed_same_result_whatever_the_other_seeds(matrix: Path) -> None:
    one = run_backtest(settings(matrix, seeds=1))["results"]
    two = run_backtest(settings(matrix, seeds=2))["results"]
    again = [entry for entry in two if entry["seed"] == 0]
    assert [entry["w1"] for entry in one] == [entry["w1"] for entry in again]


def test_history_rows_stretch_the_intervals(tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path / "many", n_models=60, test_share=0.1)
    given = {"estimators": ("x-pirt",), "budgets": (60,), "seeds": 1, "test_rows": 4}
    plain = run_backtest(settings(matrix, **given))["results"][0]
    learned = run_backtest(settings(matrix, intervals="conformal", **given))["results"][0]
    assert learned["w1"] == plain["w1"]
    assert learned["mean_width"] != plain["mean_width"]
    few = write_matrix(tmp_path / "few", n_models=60, test_share=0.4)
    with pytest.raises(UsageError, match="history of 72 complete rows"):
        run_backtest(settings(few, intervals="conformal"))


def test_prompts_and_datasets_can_be_narrowed(matrix: Path) -> None:
    narrowed = settings(matrix, datasets=("a",), prompts=8, budgets=(30,), seeds=1)
    (entry,) = run_backtest(narrowed)["results"]
    assert all(round(score * 8, 6) == round(score * 8) for score in entry["true"])
    with pytest.raises(UsageError, match="no dataset 'z'"):
        run_backtest(settings(matrix, datasets=("z",)))


@pytest.mark.parametrize(("budget", "message"), [(0.5, "whole numbers"), (999, "more than the 179 cells")])
def test_wrong_budgets_are_refused(matrix: Path, budget: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_backtest(settings(matrix, budgets=(budget,)))


def test_command_draws_true_against_estimated(matrix: Path, tmp_path: Path) -> None:
    plot = tmp_path / "distribution.png"
    call = f"backtest --matrix {matrix} --objective distribution --policy balanced --budgets 40 --seeds 1"
    done = CliRunner().invoke(app, [*call.split(), "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    assert plot.stat().st_size > 1000
