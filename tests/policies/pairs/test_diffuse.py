"""DiffUse and its baselines: clusters, representatives, the published stopping rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.errors import UsageError
from policies.pairs import IterativeRule, hypergeometric_risk, make_pair_policy, progress
from policies.pairs._hierarchy import Hierarchy
from policies.pairs._votes import count_votes
from tests.policies.pairs.factory import N, answers, problem


def test_the_papers_risk_example() -> None:
    assert hypergeometric_risk(8, 10, 500) == pytest.approx(0.0529, abs=5e-5)


def test_cuts_are_nested_partitions_and_agree_with_scipy() -> None:
    from scipy.cluster.hierarchy import fcluster, linkage

    vectors = np.random.default_rng(0).normal(size=(40, 3))
    tree, theirs = Hierarchy(vectors, "ward"), linkage(vectors, "ward")
    for k in (1, 2, 5, 17, 40):
        ours = {frozenset(tree.members(node).tolist()) for node in tree.cut(k)}
        labels = fcluster(theirs, k, "maxclust")
        assert ours == {frozenset(np.flatnonzero(labels == c).tolist()) for c in set(labels)}
    for k in range(1, 40):
        assert len(set(tree.cut(k)) - set(tree.cut(k + 1))) == 1  # one cluster is split


def test_the_representative_is_nearest_the_centre_in_cosine_distance() -> None:
    given = problem()
    assert given.first is not None
    assert given.second is not None
    difference = (given.first - given.second).astype(float)
    tree = Hierarchy(difference, "ward")
    expected = []
    for node in tree.cut(6):
        members = tree.members(node)
        centre = difference[members].mean(axis=0)
        likeness = difference[members] @ centre / np.linalg.norm(difference[members], axis=1)
        expected.append(members[likeness.argmax()])
    assert set(make_pair_policy("diffuse").plan(given).sample(6).tolist()) == set(map(int, expected))


@pytest.mark.parametrize("clustering", ["ward", "cosine", "kmeans"])
@pytest.mark.parametrize("representative", ["cosine", "euclidean", "random", "norm"])
def test_every_variant_samples_k_distinct_prompts(clustering: str, representative: str) -> None:
    plan = make_pair_policy(f"diffuse:{clustering}+{representative}").plan(problem())
    assert len(set(plan.sample(12).tolist())) == 12
    with pytest.raises(UsageError, match="no clustering 'wardx'"):
        make_pair_policy("diffuse:wardx")


def test_max_norm_takes_the_largest_differences() -> None:
    given = problem()
    assert given.first is not None
    assert given.second is not None
    norms = np.linalg.norm(given.first - given.second, axis=1)
    chosen = make_pair_policy("max-norm").plan(given).sample(10)
    assert norms[chosen].min() >= np.delete(norms, chosen).max()


def test_identical_outputs_still_give_a_sample() -> None:
    given = problem()
    plan = make_pair_policy("diffuse").plan(replace(given, second=given.first))
    assert len(set(plan.sample(9).tolist())) == 9


def test_a_split_clusters_old_verdict_leaves_the_vote_but_stays_bought() -> None:
    plan, verdicts = make_pair_policy("diffuse").plan(problem()), np.full(N, np.nan)
    tied = np.where(np.arange(N) % 2, 1.0, -1.0)
    rule = IterativeRule(0.001, 5, 20)
    while (now := progress(plan, verdicts, rule)).winner is None:
        verdicts[now.missing] = tied[now.missing]
    assert now.winner == 0
    assert now.verdict is not None
    assert now.verdict.a + now.verdict.b < now.bought == 20


def test_votes_that_are_even_name_nobody() -> None:
    found = count_votes(np.array([1.0, -1.0, 0.0, np.nan]), 100, 0.95, distance_kind="sampling")
    assert (found.a, found.b, found.ties, found.winner) == (1, 1, 1, 0)
    assert found.low < 0 < found.high
    assert found.risk_kind == "heuristic"


def test_the_interval_of_a_random_sample_covers() -> None:
    truth, covered = answers(n=400), 0
    for seed in range(300):
        drawn = np.random.default_rng(seed).permutation(400)[:40]
        found = count_votes(truth[drawn], 400, 0.9, distance_kind="sampling")
        covered += found.low <= truth.mean() <= found.high
    assert covered / 300 > 0.85
