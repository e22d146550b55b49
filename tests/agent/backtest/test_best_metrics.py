"""Metrics and replay of the objective "best", against cases worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.backtest.best import BestTruth, best_metrics, mcnemar_set, replay_best, save_best_plot
from assay.errors import BadInputError, UsageError
from assay.matrix import ScoreMatrix
from policies import make_policy
from tests.data import real_matrix
from tests.policies.factory import FactorEstimator
from tests.policies.test_top_two import latent_scores


def truth_of(*means: float, columns: int = 1000) -> BestTruth:
    values = np.zeros((len(means), columns))
    for row, mean in zip(values, means, strict=True):
        row[: round(mean * columns)] = 1.0
    return BestTruth.of(ScoreMatrix.build(values))


def test_the_named_method_counts_by_its_distance_from_the_best() -> None:
    truth = truth_of(0.5, 0.8, 0.7995, 0.792, columns=2000)
    seen = [best_metrics(np.eye(4)[named], truth) for named in range(4)]
    assert [m["exact"] for m in seen] == [0, 1, 0, 0]
    assert [m["within_0_001"] for m in seen] == [0, 1, 1, 0]
    assert [m["within_0_01"] for m in seen] == [0, 1, 1, 1]
    assert [round(m["regret"], 4) for m in seen] == [0.3, 0.0, 0.0005, 0.008]


def test_equally_good_methods_are_all_exact() -> None:
    truth = truth_of(0.8, 0.8, 0.1)
    assert truth.sets["exact"].tolist() == [True, True, False]


def test_mcnemar_tells_methods_apart_by_the_prompts_that_only_one_passes() -> None:
    best = np.ones(40)
    others = np.ones((3, 40))
    others[0, :4] = 0.0  # 0 against 4: p = 0.125
    others[1, :6] = 0.0  # 0 against 6: p = 0.031
    others[2, :20] = 0.0
    values = np.vstack([best, others])
    assert mcnemar_set(values, 0, 0.1).tolist() == [True, True, False, False]
    assert mcnemar_set(values, 0, 0.01).tolist() == [True, True, True, False]


def test_mcnemar_leaves_out_prompts_that_either_misses() -> None:
    values = np.array([[1.0] * 10, [np.nan] * 8 + [0.0] * 2])
    assert mcnemar_set(values, 0, 0.1).all()


def test_ndcg_is_one_for_the_true_order_and_falls_with_late_ranks() -> None:
    truth = truth_of(*np.linspace(0.1, 0.9, 12))
    right = best_metrics(truth.mean, truth)["ndcg_10"]
    swapped = truth.mean.copy()
    swapped[[10, 11]] = swapped[[11, 10]]
    assert right == pytest.approx(1.0)
    assert best_metrics(-truth.mean, truth)["ndcg_10"] < best_metrics(swapped, truth)["ndcg_10"] < 1.0


def test_missing_scores_leave_their_weight_to_the_others() -> None:
    values = np.array([[1.0, np.nan, 0.0], [1.0, 1.0, 0.0]])
    np.testing.assert_allclose(BestTruth.of(ScoreMatrix.build(values)).mean, [0.5, 2 / 3])


def test_a_method_without_scores_is_refused() -> None:
    with pytest.raises(BadInputError, match="no scores at all"):
        BestTruth.of(ScoreMatrix.build(np.array([[np.nan, np.nan], [1.0, 0.0]])))


@pytest.mark.parametrize("name", ["ucb-e", "filled-subset", "ucb-e-lrf"])
def test_a_replay_buys_each_share_exactly_and_repeats_itself(name: str) -> None:
    matrix = ScoreMatrix.build(latent_scores(15, 2))
    runs = [
        list(replay_best(make_policy(name), matrix, BestTruth.of(matrix), shares=(0.1, 0.25, 1.0), seed=4))
        for _ in range(2)
    ]
    assert [entry["used"] for entry in runs[0]] == [0.1, pytest.approx(0.25, abs=1e-3), 1.0]
    assert runs[0][2]["exact"] == 1.0
    for one, other in zip(*runs, strict=True):
        assert {k: v for k, v in one.items() if k != "algorithm_seconds"} == {
            k: v for k, v in other.items() if k != "algorithm_seconds"
        }


def test_a_policy_that_stops_leaves_the_rest_of_the_budget() -> None:
    history = FactorEstimator().fit(ScoreMatrix.build(latent_scores(150, 7)))
    matrix = ScoreMatrix.build(latent_scores(20, 1))
    policy = make_policy("top-two", confidence=0.9)
    (entry,) = replay_best(policy, matrix, BestTruth.of(matrix), shares=(1.0,), seed=0, estimator=history)
    assert entry["used"] < 0.5
    assert entry["probability_best"] >= 0.9


@pytest.mark.parametrize("shares", [(0.0,), (1.5,), (0.2, 0.1)])
def test_budgets_must_be_ascending_shares(shares: tuple[float, ...]) -> None:
    matrix = ScoreMatrix.build(latent_scores(4, 2))
    with pytest.raises(UsageError, match="ascending shares"):
        list(replay_best(make_policy("ucb-e"), matrix, BestTruth.of(matrix), shares=shares, seed=0))


def test_draws_precision_against_budget(tmp_path: Path) -> None:
    results = [
        {"policy": name, "budget": budget, "exact": float(seed % 2)}
        for name in ("ucb-e", "lrf")
        for budget in (0.05, 0.1)
        for seed in range(3)
    ]
    save_best_plot(results, tmp_path / "best.png")
    assert (tmp_path / "best.png").stat().st_size > 5_000


@pytest.mark.data
def test_ucb_e_finds_the_best_of_alpacaeval_with_a_twelfth_of_the_cells() -> None:
    matrix = real_matrix("alpacaeval", "prompt").matrix
    truth = BestTruth.of(matrix)
    runs = [
        next(iter(replay_best(make_policy("ucb-e"), matrix, truth, shares=(0.08,), seed=s))) for s in range(5)
    ]
    assert all(run["exact"] == 1.0 for run in runs)
