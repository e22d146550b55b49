"""Replaying estimate studies: what is divided how, what is acquired, what is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.backtest import BacktestSettings, build_splits, replay, run_backtest
from agent.backtest._metrics import estimate_metrics, normal_interval, rank_correlation
from agent.backtest._splits import true_scores
from assay.errors import BadInputError, UsageError
from assay.matrix import ScoreMatrix
from estimators import make_estimator
from policies import make_policy
from policies.acquisition import build_state
from tests.agent.backtest.conftest import write_matrix

METRICS = {"mae", "rmse", "bias", "kendall_tau", "coverage", "mean_width", "fit_seconds", "decision_ms"}


def settings(folder: Path, **changes: Any) -> BacktestSettings:
    base = BacktestSettings(
        str(folder),
        policies=("uniform", "stratified"),
        estimators=("aggregate",),
        budgets=(5, 12),
        seeds=2,
    )
    return replace(base, **changes)


def without_timings(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timings = {"fit_seconds", "prepare_seconds", "decision_ms"}
    return [{key: value for key, value in entry.items() if key not in timings} for entry in results]


def test_one_entry_per_policy_estimator_budget_and_seed(matrix: Path) -> None:
    document = run_backtest(settings(matrix))
    assert document["settings"]["policies"] == ["uniform", "stratified"]
    keys = [(e["policy"], e["estimator"], e["budget"], e["seed"]) for e in document["results"]]
    assert len(set(keys)) == len(keys) == 2 * 1 * 2 * 2
    assert all(set(entry) >= METRICS for entry in document["results"])
    json.dumps(document, allow_nan=False)


def test_acquiring_everything_leaves_no_error(matrix: Path) -> None:
    entries = run_backtest(settings(matrix, budgets=(30,), policies=("uniform",), seeds=1))["results"]
    assert entries[0]["mae"] == pytest.approx(0.0, abs=0.02)  # one row has a score that nobody can acquire
    assert entries[0]["kendall_tau"] > 0.9


def test_same_settings_same_results(matrix: Path) -> None:
    once, again = (run_backtest(settings(matrix))["results"] for _ in range(2))
    assert without_timings(once) == without_timings(again)


@pytest.mark.slow
def test_processes_change_nothing(matrix: Path) -> None:
    alone = run_backtest(settings(matrix))["results"]
    shared = run_backtest(settings(matrix), jobs=2)["results"]
    assert without_timings(alone) == without_timings(shared)


def test_goes_on_where_it_was_interrupted(matrix: Path, tmp_path: Path) -> None:
    whole, work = run_backtest(settings(matrix))["results"], tmp_path / "out.json.work"

    def interrupt(done: int, total: int, label: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_backtest(settings(matrix), work=work, on_progress=interrupt)
    journal = work / "journal.jsonl"
    journal.write_text(journal.read_text() + '{"task": "1/unif')  # killed in the middle of a line
    ran: list[str] = []
    resumed = run_backtest(settings(matrix), work=work, on_progress=lambda *about: ran.append(about[2]))
    assert len(ran) == 2
    assert without_timings(resumed["results"]) == without_timings(whole)
    assert not work.exists()


def test_work_of_other_settings_is_refused(matrix: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, label: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_backtest(settings(matrix), work=tmp_path / "w", on_progress=interrupt)
    with pytest.raises(UsageError, match="other settings"):
        run_backtest(settings(matrix, batch=3), work=tmp_path / "w")


@pytest.mark.parametrize("batch", [1, 4, 5])
@pytest.mark.parametrize("policy", ["uniform", "stratified"])
def test_acquires_the_cells_of_a_study_that_runs_on_its_own(matrix: Path, policy: str, batch: int) -> None:
    split = build_splits(settings(matrix))[0]
    estimator = make_estimator("aggregate").fit(split.history)
    chooser = make_policy(policy, seed=1)
    chooser.prepare(split.history, estimator)
    at = replay(split.test, chooser, estimator, budgets=[5, 12], batch=batch, seed=1)
    orders = {budget: [list(row) for row in state.order] for budget, state in at}
    for total in (5, 12):
        for i, method in enumerate(split.test.method_ids):
            study = _study(split.test.values[i], method, chooser, split.test, total, batch)
            assert orders[total][i] == study


def _study(truth: Any, method: str, policy: Any, matrix: ScoreMatrix, total: int, batch: int) -> list[int]:
    known, order = np.full(matrix.n_prompts, np.nan), []
    while len(order) < total:
        state = build_state(
            known,
            seed=1,
            methods=(method,),
            weights=matrix.weights,
            dataset_index=matrix.dataset_index,
            estimator=None,
            total=total,
            available=~np.isnan(truth),
        )
        chosen = policy.select(state, min(batch, total - len(order))).columns
        known[chosen] = truth[chosen]
        order.extend(chosen.tolist())
    return order


def test_conformal_intervals_replace_the_posteriors_own(tmp_path: Path) -> None:
    folder = write_matrix(tmp_path / "large", n_models=80)
    asked = settings(folder, seeds=1, policies=("uniform", "static-design"))
    own = run_backtest(asked)["results"]
    conformal = run_backtest(replace(asked, intervals="conformal"))["results"]
    assert [entry["mae"] for entry in own] == [entry["mae"] for entry in conformal]
    assert all(a["mean_width"] != b["mean_width"] for a, b in zip(own, conformal, strict=True))
    assert all(entry["coverage"] > 0.7 for entry in conformal)


def test_models_draw_their_own_prompts_under_one_seed(matrix: Path) -> None:
    split = build_splits(settings(matrix))[0]
    estimator = make_estimator("aggregate").fit(split.history)
    at = replay(split.test, make_policy("uniform"), estimator, budgets=[5])
    ((_, state),) = at
    assert len({tuple(row) for row in state.order}) == split.test.n_methods


def test_split_column_divides_train_and_test(matrix: Path) -> None:
    (split,) = build_splits(settings(matrix))
    assert split.history.n_methods == 18
    assert split.test.method_ids == tuple(f"m{i}" for i in range(18, 24))


def test_test_matrix_gives_the_test_rows(matrix: Path, tmp_path: Path) -> None:
    other = write_matrix(tmp_path / "other", n_models=8)
    (split,) = build_splits(settings(matrix, test_matrix=str(other)))
    assert (split.history.n_methods, split.test.n_methods) == (24, 8)
    narrow = write_matrix(tmp_path / "narrow", n_prompts=12)
    with pytest.raises(BadInputError, match="other prompts"):
        build_splits(settings(matrix, test_matrix=str(narrow)))


def test_random_splits_are_disjoint_reproducible_and_of_the_asked_size(matrix: Path) -> None:
    asked = settings(matrix, random_splits=3, train_share=0.707)
    splits, again = build_splits(asked), build_splits(asked)
    assert [split.history.n_methods for split in splits] == [17] * 3
    for split, same in zip(splits, again, strict=True):
        assert not set(split.history.method_ids) & set(split.test.method_ids)
        assert split.test.method_ids == same.test.method_ids
    assert splits[0].test.method_ids != splits[1].test.method_ids


def test_leave_one_out_ranks_the_rows_together(matrix: Path) -> None:
    entries = run_backtest(settings(matrix, leave_one_out=True, seeds=1, budgets=(20,)))["results"]
    assert all(entry["kendall_tau"] > 0.5 for entry in entries)
    assert len(build_splits(settings(matrix, leave_one_out=True))) == 24


def test_held_out_group_is_tested_and_not_learned_from(matrix: Path) -> None:
    (split,) = build_splits(settings(matrix, holdout_group="family=y"))
    assert split.test.method_ids == tuple(f"m{i}" for i in range(0, 24, 4))
    assert not set(split.test.method_ids) & set(split.history.method_ids)
    with pytest.raises(UsageError, match=r"z not in models\.csv") as caught:
        build_splits(settings(matrix, holdout_group="family=z"))
    assert "x, y" in caught.value.hint


def test_prompt_weighting_is_the_plain_mean(matrix: Path) -> None:
    (split,) = build_splits(settings(matrix, weighting="prompt"))
    rows = split.test.values[:-1].astype(float)
    np.testing.assert_allclose(true_scores(split.test)[:-1], rows.mean(axis=1))


def test_missing_scores_leave_each_dataset_its_weight() -> None:
    values = np.array([[1.0, np.nan, 0.0, 0.0]])
    test = ScoreMatrix.build(values, prompt_datasets=["a", "a", "b", "b"])
    np.testing.assert_allclose(true_scores(test), [0.5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policies": ("unifrom",)}, "unknown policy"),
        ({"estimators": ("aggregat",)}, "unknown estimator"),
        ({"objective": "estimat"}, "unknown objective"),
        ({"budgets": (2.5,)}, "whole numbers"),
        ({"budgets": (0,)}, "positive"),
        ({"budgets": (31,)}, "30 prompts"),
        ({"seeds": 0}, "--seeds"),
        ({"batch": 0}, "--batch"),
        ({"train_share": 1.0}, "--train-share"),
        ({"leave_one_out": True, "random_splits": 2}, "choose one"),
        ({"matrix": "absent"}, "no matrix folder at absent"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(
    matrix: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_backtest(settings(matrix, **change))


def test_a_matrix_without_split_asks_for_a_way_to_divide_it(matrix: Path) -> None:
    (matrix / "models.csv").write_text("model\n" + "".join(f"m{i}\n" for i in range(24)))
    with pytest.raises(UsageError, match="no column 'split'") as caught:
        run_backtest(settings(matrix))
    assert "--random-splits" in caught.value.hint


def test_prompts_are_embedded_where_a_policy_looks_at_them(matrix: Path) -> None:
    assert build_splits(settings(matrix))[0].test.embeddings is None
    asked = settings(matrix, policies=("cluster-embed",), budgets=(5,), seeds=1)
    (split,) = build_splits(asked)
    assert split.test.embeddings is not None
    assert len(split.test.embeddings) == 30
    assert len(run_backtest(asked)["results"]) == 1


def test_metrics_on_known_numbers() -> None:
    mean, std = np.array([0.5, 0.6, 0.1]), np.array([0.1, 0.01, 0.1])
    metrics = estimate_metrics(mean, *normal_interval(mean, std), np.array([0.6, 0.5, 0.1]))
    assert metrics["mae"] == pytest.approx(0.2 / 3)
    assert metrics["rmse"] == pytest.approx(np.sqrt(0.02 / 3))
    assert metrics["bias"] == pytest.approx(0.0)
    assert metrics["coverage"] == pytest.approx(2 / 3)
    assert metrics["mean_width"] == pytest.approx((0.392 + 0.0392 + 0.296) / 3, abs=1e-4)
    assert rank_correlation(mean, np.array([0.6, 0.5, 0.1])) == pytest.approx(1 / 3)
    assert rank_correlation(mean[:1], mean[:1]) is None
