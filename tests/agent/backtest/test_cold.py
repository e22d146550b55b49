"""Backtests in which the history knows nothing about some datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.backtest import BacktestSettings, build_splits, run_backtest
from assay.errors import UsageError
from tests.agent.backtest.conftest import write_matrix


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    return write_matrix(tmp_path / "matrix", n_models=60, n_prompts=60, test_share=0.4)


def settings(folder: Path, **changes: Any) -> BacktestSettings:
    base = BacktestSettings(
        str(folder),
        policies=("expected-variance-reduction",),
        estimators=("linear-gaussian",),
        budgets=(12, 24),
        seeds=1,
        cold_datasets=("b",),
        pooled_prompts=20,
    )
    return replace(base, **changes)


def errors(given: BacktestSettings) -> list[float]:
    return [entry["mae"] for entry in run_backtest(given)["results"]]


def test_the_history_forgets_the_datasets_and_the_test_rows_do_not(matrix: Path) -> None:
    (split,) = build_splits(settings(matrix))
    cold = split.matrix.dataset_index == split.matrix.datasets.index("b")
    assert np.isnan(split.history.values[:, cold]).all()
    assert not np.isnan(split.history.values[:, ~cold]).any()
    assert not np.isnan(split.test.values[:-1]).any()


def test_pooling_the_answers_of_earlier_models_helps(matrix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # chosen among all prompts: with so few test rows, draws would decide
    monkeypatch.setattr("estimators._linear_gaussian.CANDIDATES_PER_ROW", 1000.0)
    warm = errors(settings(matrix, cold_datasets=()))
    alone, pooled = errors(settings(matrix)), errors(settings(matrix, pooled=14))
    assert warm[1] < pooled[1] < alone[1]


def test_more_than_nothing_is_spent_on_prompts_without_history(matrix: Path) -> None:
    blind, half = errors(settings(matrix, cold_share=0.0)), errors(settings(matrix, cold_share=0.5))
    assert half[1] < blind[1]


def test_same_settings_same_results(matrix: Path) -> None:
    given = settings(matrix, pooled=10, policies=("expected-variance-reduction", "stratified"))
    assert errors(given) == errors(given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cold_datasets": ("c",)}, "no dataset 'c'"),
        ({"cold_datasets": ("a", "b")}, "no dataset would be left"),
        ({"cold_datasets": (), "pooled": 3}, "--pooled needs --cold-datasets"),
        ({"pooled": 24}, "leaves none of the 24 test rows"),
        ({"cold_share": 1.2}, "--cold-share must lie between 0 and 1"),
        ({"intervals": "conformal"}, "posterior intervals"),
    ],
)
def test_what_makes_no_sense_is_refused(matrix: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_backtest(settings(matrix, **changes))
