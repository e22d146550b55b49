"""Replaying comparisons of pairs through the same command as all backtests."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from agent.backtest import BacktestSettings, run_backtest
from agent.backtest.compare import PairBench, PairRun, play_budgets, play_iteratively, verdicts
from assay.errors import UsageError
from policies.pairs import IterativeRule, PairHistory, make_pair_policy
from tests.agent.backtest.conftest import write_matrix


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A matrix folder with outputs of all but the first model, and a cache of its own."""
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path / "data"))
    path = write_matrix(tmp_path / "matrix")
    rng = np.random.default_rng(4)
    words = np.array(["river", "stone", "cloud", "seven", "green", "number", "because", "therefore"])
    with lzma.open(path / "outputs.jsonl.xz", "wt", encoding="utf-8") as file:
        for i in range(1, 24):
            outputs = [" ".join(rng.choice(words, 5 + i % 7)) for _ in range(30)]
            file.write(json.dumps({"model": f"m{i}", "outputs": outputs}) + "\n")
    return path


def test_one_entry_per_policy_budget_and_seed(folder: Path) -> None:
    settings = BacktestSettings(
        str(folder),
        objective="compare",
        policies=("random", "diffuse", "cluster-inputs"),
        budgets=(3, 9),
        seeds=2,
    )
    document = run_backtest(settings)
    assert [(e["policy"], e["budget"], e["seed"]) for e in document["results"]][:4] == [
        ("random", 3, 0),
        ("random", 3, 1),
        ("random", 9, 0),
        ("random", 9, 1),
    ]
    assert len(document["results"]) == 3 * 2 * 2
    assert all(0 <= entry["success"] <= 1 for entry in document["results"])


def test_iterative_runs_report_labels_and_outcomes(folder: Path) -> None:
    settings = BacktestSettings(
        str(folder), objective="compare", policies=("random",), budgets=(20,), seeds=1, risk=0.1
    )
    (entry,) = run_backtest(settings)["results"]
    assert 5 <= entry["labels"] <= 20
    assert entry["success"] + entry["error"] + entry["inconclusive"] == pytest.approx(1.0)


def test_folders_without_outputs_serve_policies_that_need_none(matrix: Path) -> None:
    base = {"objective": "compare", "budgets": (5,), "seeds": 1}
    assert run_backtest(BacktestSettings(str(matrix), policies=("random",), **base))["results"]
    with pytest.raises(UsageError, match="looks at the outputs"):
        run_backtest(BacktestSettings(str(matrix), policies=("diffuse",), **base))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ("ucb-e",)}, "unknown pair policy"),
        ({"budgets": (0.5,)}, "verdicts per pair"),
        ({"risk": 1.5}, "--risk must lie between"),
        ({"subset": 0.0}, "--subset must lie"),
    ],
)
def test_wrong_use_is_refused(matrix: Path, changes: dict[str, object], message: str) -> None:
    settings = {"objective": "compare", "policies": ("random",), "budgets": (5,)} | changes
    with pytest.raises(UsageError, match=message):
        run_backtest(BacktestSettings(str(matrix), **settings))  # type: ignore[arg-type]


def test_all_prompts_asked_always_succeed_and_draws_have_no_winner() -> None:
    scores = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, np.nan], [1.0, 0.0, 1.0, 0.0]])
    bench = PairBench(scores, (0, 1, 2), history=(0, 1, 2))
    (full,) = play_budgets(make_pair_policy("random"), bench, (0, 1), 0, 1.0, [3])
    assert full["success"] == 1.0
    assert full["distance_mae"] == 0.0
    (draw,) = play_budgets(make_pair_policy("random"), bench, (0, 2), 0, 1.0, [3])
    assert np.isnan(draw["success"])
    over = play_iteratively(make_pair_policy("random"), bench, (0, 2), 0, 1.0, IterativeRule(0.1, 1, 3))
    assert over["inconclusive"] == 1.0


def test_a_pair_is_left_out_of_its_own_history(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PairBench(np.random.default_rng(0).random((5, 9)), (0, 1, 2), history=(0, 1, 2, 3))
    seen: list[PairHistory] = []
    policy = make_pair_policy("random")
    monkeypatch.setattr(policy, "prepare", lambda history: seen.append(history))
    play_budgets(policy, bench, (0, 2), 0, 1.0, [3])
    assert seen[0].kept.tolist() == [1, 3]


def test_prompts_without_a_verdict_are_left_out() -> None:
    assert verdicts(np.array([1.0, 0.2, np.nan]), np.array([0.0, 0.2, 1.0])).tolist()[:2] == [1.0, 0.0]
    bench = PairBench(np.array([[1.0, np.nan, 0.0], [0.0, 1.0, 1.0]]), (0, 1))
    run = PairRun.of(bench, (0, 1), 0, 1.0)
    assert run.problem.n_prompts == 2
    assert run.problem.columns is not None
    assert run.problem.columns.tolist() == [0, 2]
