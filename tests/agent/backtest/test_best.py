"""Replaying the search for the best method through the same command as all backtests."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.backtest import BacktestSettings, run_backtest
from assay.errors import UsageError
from tests.agent.backtest.conftest import write_matrix

METRICS = {"exact", "within_0_001", "within_0_01", "ndcg_10", "algorithm_seconds"}


def test_one_entry_per_share_and_seed_and_all_cells_name_the_best(matrix: Path) -> None:
    settings = BacktestSettings(
        str(matrix), objective="best", policies=("ucb-e", "row-mean"), budgets=(0.2, 1.0), seeds=2
    )
    document = run_backtest(settings)
    assert document["settings"]["estimators"] == ["aggregate"]
    entries = document["results"]
    assert len(entries) == 2 * 2 * 2
    assert all(set(entry) >= METRICS for entry in entries)
    assert all(entry["exact"] == 1.0 for entry in entries if entry["budget"] == 1.0)


def test_rows_that_nothing_divides_are_all_tested_without_history(tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path / "plain")
    (matrix / "models.csv").write_text("model\n" + "".join(f"m{i}\n" for i in range(24)))
    settings = BacktestSettings(str(matrix), objective="best", policies=("ucb-e",), budgets=(1.0,), seeds=1)
    (entry,) = run_backtest(settings)["results"]
    assert entry["exact"] == 1.0
    (few,) = run_backtest(
        BacktestSettings(
            str(matrix), objective="best", policies=("ucb-e",), budgets=(1.0,), seeds=1, test_rows=5
        )
    )["results"]
    assert few["exact"] == 1.0


@pytest.mark.parametrize(
    ("policy", "budget", "message"),
    [("uniform", 0.1, "cannot name a best method"), ("ucb-e", 25, "shares of all cells")],
)
def test_wrong_use_is_refused(matrix: Path, policy: str, budget: float, message: str) -> None:
    settings = BacktestSettings(str(matrix), objective="best", policies=(policy,), budgets=(budget,))
    with pytest.raises(UsageError, match=message):
        run_backtest(settings)
