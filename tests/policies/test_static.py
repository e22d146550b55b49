"""Cluster and combinatorial policies: what they promise beyond the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.errors import BadInputError, UsageError
from assay.matrix import ScoreMatrix
from policies import make_policy
from policies._cluster import cluster_prompts, score_features
from policies._combinatorial import errors_by_one_look
from tests.policies.factory import N_PROMPTS, FactorEstimator, build_policy, estimator, history, make_state

BLOBS = np.array([[0.0, 0.0], [0.0, 0.2], [0.0, -0.1], [5.0, 5.0], [5.0, 5.3], [9.0, 0.0]])


@pytest.mark.parametrize("name", ["cluster-irt", "static-design"])
def test_a_model_of_its_own_is_fitted_where_the_studys_is_another(name: str) -> None:
    policy, known = make_policy(name), build_policy(name)
    policy.prepare(history(), estimator())
    assert policy.select(make_state(), 4).columns.tolist() == known.select(make_state(), 4).columns.tolist()


def blob_state(**changes: Any) -> Any:
    scores = np.full((1, 6), np.nan)
    state = make_state(scores=scores, total=3, embeddings=BLOBS.astype(np.float32), **changes)
    return replace(
        state,
        pending=np.zeros((1, 6), dtype=bool),
        available=np.ones((1, 6), dtype=bool),
        cost=np.ones((1, 6)),
        weights=np.full(6, 1 / 6),
        dataset_index=np.zeros(6, dtype=np.intp),
    )


def test_the_prompt_nearest_each_centroid_largest_cluster_first() -> None:
    policy = make_policy("cluster-embed")
    assert policy.select(blob_state(), 3).columns.tolist() == [0, 3, 5]
    assert sorted(policy.select(blob_state(), 6).columns.tolist()) == list(range(6))


def test_a_cluster_with_a_known_or_pending_prompt_waits_for_the_others() -> None:
    policy, state = make_policy("cluster-embed"), blob_state()
    state.scores[0, 1] = 1.0  # not an anchor, but of the largest cluster
    state.pending[0, 4] = True
    assert policy.select(state, 1).columns.tolist() == [5]
    state.available[0, 5] = False
    assert policy.select(state, 1).columns.tolist() == [0]


def test_embeddings_are_needed_where_prompts_are_clustered_by_them() -> None:
    with pytest.raises(BadInputError, match="needs prompt embeddings"):
        make_policy("cluster-embed").select(replace(blob_state(), embeddings=None), 1)


def test_identical_prompts_make_no_more_clusters_than_there_are() -> None:
    cluster, distance = cluster_prompts(np.ones((5, 2)), 3, seed=0)
    assert set(cluster) == {0}
    np.testing.assert_allclose(distance, 0.0)


def test_columns_of_many_models_are_reduced_and_holes_filled() -> None:
    rng = np.random.default_rng(0)
    values = (rng.random((90, 7)) < 0.5).astype(float)
    values[:, 3] = np.nan
    features = score_features(ScoreMatrix.build(values))
    assert features.shape == (7, 64)
    assert np.isfinite(features).all()


def exact_error(chosen: list[int], truth: Any) -> float:
    observed = np.full(truth.shape, np.nan)
    observed[:, chosen] = truth[:, chosen]
    squares = (estimator().predict(observed).mean - truth) ** 2
    return float(np.nanmean(squares[np.isnan(observed)]))


def test_combinatorial_leaves_the_least_error_on_the_history_models() -> None:
    policy = make_policy("combinatorial", models=5)
    policy.prepare(history(), estimator())
    truth = policy._truth
    order = policy.select(make_state(total=3), 3).columns.tolist()
    for place in range(3):
        errors = [
            exact_error([*order[:place], j], truth) if j not in order[:place] else np.inf
            for j in range(N_PROMPTS)
        ]
        assert order[place] == int(np.argmin(np.round(errors, 12)))


def test_one_look_gives_the_errors_of_trying_each_prompt() -> None:
    truth = history().values[:7].astype(float)
    asked = np.where(np.arange(N_PROMPTS) % 5 == 0, truth, np.nan)
    found = errors_by_one_look(estimator().linearize(asked), asked, truth)  # type: ignore[attr-defined]
    for j in np.flatnonzero(np.arange(N_PROMPTS) % 5):
        observed = asked.copy()
        observed[:, j] = truth[:, j]
        squares = (estimator().predict(observed).mean - truth)[np.isnan(observed)] ** 2
        np.testing.assert_allclose(found[j], np.nanmean(squares))


def test_candidates_are_tried_one_by_one_where_the_estimator_cannot_be_linearised() -> None:
    class Opaque(FactorEstimator):
        linearize = None  # type: ignore[assignment]

        def predict(self, observed: Any) -> Any:
            return estimator().predict(observed)

    looked, tried = make_policy("combinatorial", models=5), make_policy("combinatorial", models=5)
    looked.prepare(history(), estimator())
    tried.prepare(history(), Opaque().fit(history()))
    state = make_state(total=4)
    assert tried.select(state, 4).columns.tolist() == looked.select(state, 4).columns.tolist()


def test_combinatorial_says_how_long_it_would_take_and_can_be_forced() -> None:
    small = {"models": 4, "candidates": 3, "limit_seconds": 0.0}
    policy = make_policy("combinatorial", **small)
    policy.prepare(history(), estimator())
    with pytest.raises(UsageError, match=r"would take about .* to choose 12 of 24 prompts on 4") as caught:
        policy.select(make_state(total=12), 1)
    assert "--force" in caught.value.hint
    forced = make_policy("combinatorial", **small, force=True)
    forced.prepare(history(), estimator())
    assert len(forced.select(make_state(total=12), 1)) == 1


def test_combinatorial_passes_over_what_cannot_be_bought() -> None:
    policy, state = build_policy("combinatorial"), make_state(total=2)
    state.available[0, policy.select(state, 2).columns] = False
    again = policy.select(state, 2).columns
    assert len(again) == 2
    assert state.available[0, again].all()
