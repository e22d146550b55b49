"""Expected variance reduction, static design and information gain against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.errors import BadInputError
from estimators import make_estimator
from policies import make_policy
from policies._row_design import RowDesign
from tests.policies.factory import N_PROMPTS, FactorEstimator, build_policy, estimator, history, make_state


def random_design(seed: int = 0, n: int = 9, d: int = 3) -> RowDesign:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(d, d))
    weights = rng.dirichlet(np.ones(n))
    weights[2] = 0.0
    return RowDesign(rng.normal(size=(n, d)), root @ root.T, rng.uniform(0.1, 1.0, n), weights)


def joint_covariance(design: RowDesign) -> Any:
    return design.loadings @ design.covariance @ design.loadings.T + np.diag(design.noise)


def variance_given(joint: Any, weights: Any, answered: list[int]) -> float:
    """Var of the weighted sum of unanswered scores given the answered ones, by the Schur complement."""
    rest = [k for k in range(len(weights)) if k not in answered]
    a, b, c = joint[np.ix_(rest, rest)], joint[np.ix_(rest, answered)], joint[np.ix_(answered, answered)]
    left = a - b @ np.linalg.solve(c, b.T) if answered else a
    return float(weights[rest] @ left @ weights[rest])


def test_gain_is_the_drop_of_the_score_variance() -> None:
    design = random_design()
    joint, weights = joint_covariance(design), design.weights
    before = variance_given(joint, weights, [])
    expected = [before - variance_given(joint, weights, [j]) for j in range(len(weights))]
    np.testing.assert_allclose(design.score_gains(), expected)


def test_taking_prompts_conditions_on_their_answers() -> None:
    design, weights = random_design(), random_design().weights
    joint = joint_covariance(design)
    for answered in ([4], [4, 7], [4, 7, 0]):
        design.take(answered[-1])
        left = [j for j in range(len(weights)) if j not in answered]
        before = variance_given(joint, weights, answered)
        expected = [before - variance_given(joint, weights, [*answered, j]) for j in left]
        np.testing.assert_allclose(design.score_gains()[left], expected, rtol=1e-8)


def test_taking_many_at_once_equals_one_by_one() -> None:
    together, one_by_one = random_design(), random_design()
    together.take_all(np.isin(np.arange(9), [1, 5, 8]))
    for j in (5, 1, 8):
        one_by_one.take(j)
    left = [0, 2, 3, 4, 6, 7]
    np.testing.assert_allclose(together.score_gains()[left], one_by_one.score_gains()[left], rtol=1e-8)
    np.testing.assert_allclose(together.latent_gains()[left], one_by_one.latent_gains()[left], rtol=1e-8)


def test_latent_gain_is_the_drop_of_the_entropy() -> None:
    design = random_design()
    after = [
        np.linalg.inv(np.linalg.inv(design.covariance) + np.outer(a, a) / v)
        for a, v in zip(design.loadings, design.noise, strict=True)
    ]
    before = np.linalg.slogdet(design.covariance)[1]
    expected = [(before - np.linalg.slogdet(c)[1]) / 2 for c in after]
    np.testing.assert_allclose(design.latent_gains(), expected)


def score_variance(scores: Any) -> float:
    return float(estimator().benchmark_score(scores).std[0] ** 2)


@pytest.mark.parametrize("name", ["expected-variance-reduction"])
def test_chooses_what_lowers_the_estimators_own_variance_most(name: str) -> None:
    state = make_state(known=4)
    (chosen,) = build_policy(name).select(state, 1).columns
    drops = np.full(N_PROMPTS, -1.0)
    for j in np.flatnonzero(state.candidates[0]):
        answered = state.scores.copy()
        answered[0, j] = 1.0  # a linear-Gaussian variance does not depend on the answer
        drops[j] = score_variance(state.scores) - score_variance(answered)
    assert chosen == np.argmax(drops)


@pytest.mark.parametrize("name", ["expected-variance-reduction", "static-design"])
def test_batch_is_what_one_at_a_time_would_choose_in_a_linear_model(name: str) -> None:
    policy = make_policy(name)
    model = make_estimator("linear-gaussian", rank=3, among=0).fit(history())
    policy.prepare(history(), model)
    state = make_state(known=3, estimator=model)
    batch = policy.select(state, 5).columns.tolist()
    for j in batch:
        assert policy.select(state, 1).columns.tolist() == [j]
        state.scores[0, j] = 1.0


@pytest.mark.parametrize("name", ["expected-variance-reduction", "static-design", "information-gain"])
def test_with_few_methods_each_prompt_is_the_best_of_some_that_are_drawn(name: str) -> None:
    among, draws = 6, 200
    model = make_estimator("linear-gaussian", rank=3, among=among).fit(history())
    policy, whole = make_policy(name), make_policy(name)
    policy.prepare(history(), model)
    whole.prepare(history(), everything := make_estimator("linear-gaussian", rank=3, among=0).fit(history()))
    state = make_state(known=3, estimator=model)
    order = whole.select(replace(state, estimator=everything), N_PROMPTS).columns[:1]
    first = [policy.select(state, 1) for _ in range(draws)]
    free = int(state.candidates.sum())
    assert np.mean([chosen.columns[0] == order[0] for chosen in first]) == pytest.approx(
        among / free, abs=0.12
    )
    found = {int(chosen.columns[0]): float(chosen.probability[0]) for chosen in first}
    assert found[int(order[0])] == pytest.approx(among / free)
    assert len(found) <= free - among + 1
    assert 0.9 < sum(found.values()) <= 1.0 + 1e-9
    assert len(policy.select(state, N_PROMPTS)) == free


@pytest.mark.parametrize(
    "name", ["expected-variance-reduction", "static-design", "information-gain", "uncertainty"]
)
def test_a_dear_prompt_gives_way_to_one_of_more_gain_per_cost(name: str) -> None:
    policy, state = build_policy(name), make_state(known=3)
    if name == "static-design":  # chooses among all prompts, as the others do with the estimator for tests
        policy.prepare(history(), make_estimator("linear-gaussian", among=0).fit(history()))
    first = policy.select(state, 1)
    cost = np.ones_like(state.cost)
    cost[0, first.columns[0]] = 100.0
    dear = replace(state, cost=cost)
    assert policy.select(dear, 1).columns[0] != first.columns[0]
    scaled = policy.select(replace(state, cost=7.0 * state.cost), 1)
    assert scaled.columns[0] == first.columns[0]
    np.testing.assert_allclose(scaled.gain, first.gain)


def test_answers_change_an_adaptive_choice_but_not_a_static_one() -> None:
    class Moody(FactorEstimator):
        """Thinks that one dataset is noiseless for methods that answered prompt 0 rightly."""

        def linearize(self, observed: Any) -> Any:
            line = super().linearize(observed)
            quiet = np.where((observed[:, :1] == 1.0) & (self.dataset_index_ == 0), 1e-3, line.noise)
            return replace(line, noise=quiet)

    model = Moody().fit(history())
    chosen: dict[str, list[list[int]]] = {"expected-variance-reduction": [], "static-design": []}
    for name, found in chosen.items():
        policy = make_policy(name)
        policy.prepare(history(), model)
        for answer in (0.0, 1.0):
            state = make_state(estimator=model)
            state.scores[0, 0] = answer
            found.append(policy.select(state, 6).columns.tolist())
    assert chosen["expected-variance-reduction"][0] != chosen["expected-variance-reduction"][1]
    assert chosen["static-design"][0] == chosen["static-design"][1]


def test_an_estimator_that_cannot_be_linearised_is_refused() -> None:
    state = make_state(estimator=make_estimator("aggregate").fit(history()))
    with pytest.raises(BadInputError, match="not 'aggregate'"):
        make_policy("expected-variance-reduction").select(state, 1)
    with pytest.raises(BadInputError, match="'aggregate' has none"):
        make_policy("information-gain").select(state, 1)


class LatentOnly(FactorEstimator):
    """Says how uncertain its latent is, but cannot be linearised; answers it disbelieves tell it more."""

    linearize = None  # type: ignore[assignment]

    def predict(self, observed: Any) -> Any:
        return FactorEstimator.predict(_twin(self), observed)

    def latent_entropy(self, observed: Any) -> Any:
        line = _twin(self).linearize(observed)
        return 0.5 * np.linalg.slogdet(line.covariance)[1]


def _twin(model: FactorEstimator) -> FactorEstimator:
    twin = FactorEstimator()
    twin.__dict__.update(model.__dict__)
    return twin


@pytest.mark.parametrize("known", [0, 4])
def test_information_gain_by_sampling_agrees_with_the_closed_form(known: int) -> None:
    model = LatentOnly().fit(history())
    state = make_state(rows=2, known=known)
    closed = build_policy("information-gain").select(state, 1)
    for params in ({}, {"shortlist": N_PROMPTS}):
        policy = make_policy("information-gain", **params)
        policy.prepare(history(), model)
        sampled = policy.select(replace(state, estimator=model), 1)
        assert (sampled.rows[0], sampled.columns[0]) == (closed.rows[0], closed.columns[0])
        np.testing.assert_allclose(sampled.gain, closed.gain)


def test_a_shortlist_tries_only_the_most_uncertain() -> None:
    model = LatentOnly().fit(history())
    policy = make_policy("information-gain", shortlist=2)
    policy.prepare(history(), model)
    state = make_state(known=3, estimator=model)
    uncertain = build_policy("uncertainty").select(make_state(known=3), 2)
    assert set(policy.select(state, 5).columns) == set(uncertain.columns)
