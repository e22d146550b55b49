"""The learned policy: advantages, episodes, training, checkpoints and what it does with a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.errors import BadInputError, NotFittedError, UsageError
from assay.matrix import ScoreMatrix
from estimators import Estimator, make_estimator
from policies import PolicyState
from policies._ppo import PpoPolicy, crossfits
from policies._ppo_episodes import log_shares, potential, roll_out
from policies._ppo_network import ActorCritic
from policies._ppo_training import PpoSettings, generalised_advantages, update
from policies._ppo_view import Lookahead, Representation, look
from policies._row_design import row_designs
from tests.policies.factory import SMALL, build_policy, estimator, history, make_state

Small = dict[str, Any]
SETTINGS: Small = SMALL["ppo"]


def trained(**changes: Any) -> PpoPolicy:
    policy = PpoPolicy(**{**SETTINGS, **changes})
    policy.prepare(history(), estimator())
    return policy


def blank(matrix: ScoreMatrix, fitted: Estimator) -> PolicyState:
    """A new method of which nothing is known."""
    shape = (1, matrix.n_prompts)
    return PolicyState(
        scores=np.full(shape, np.nan),
        pending=np.zeros(shape, bool),
        available=np.ones(shape, bool),
        cost=np.ones(shape),
        weights=matrix.weights,
        dataset_index=matrix.dataset_index,
        estimator=fitted,
        rng=np.random.default_rng(0),
    )


def test_a_wide_benchmark_is_played_on_some_of_its_prompts_and_chosen_among_all() -> None:
    wide = trained(most_prompts=16, prompts=6)
    assert len(wide._played_prompts(history().n_prompts)) == 16
    state = blank(history(), estimator())
    assert len(set(wide.select(state, 24).columns.tolist())) == 24
    assert same(wide, trained(most_prompts=16, prompts=6))
    with pytest.raises(UsageError, match="at least 2 prompts"):
        PpoPolicy(most_prompts=1)


def weights(policy: PpoPolicy) -> dict[str, np.ndarray[Any, Any]]:
    assert policy._network is not None
    return {key: value.numpy() for key, value in policy._network.state_dict().items()}


def same(one: PpoPolicy, other: PpoPolicy) -> bool:
    mine, theirs = weights(one), weights(other)
    return all(np.array_equal(mine[key], theirs[key]) for key in mine)


def advantages_by_definition(
    rewards: np.ndarray[Any, Any], values: np.ndarray[Any, Any], discount: float, smoothing: float
) -> np.ndarray[Any, Any]:
    """sum_k (gamma lambda)^k delta_{t + k}: the definition, without the recursion."""
    deltas = rewards + discount * values[1:] - values[:-1]
    steps = len(rewards)
    powers = (discount * smoothing) ** np.arange(steps)
    return np.array([(powers[: steps - t, None] * deltas[t:]).sum(axis=0) for t in range(steps)])


@pytest.mark.parametrize(("discount", "smoothing"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_advantages_agree_with_their_definition(discount: float, smoothing: float) -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(13, 5)), rng.normal(size=(14, 5))
    found = generalised_advantages(torch.from_numpy(rewards), torch.from_numpy(values), discount, smoothing)
    np.testing.assert_allclose(
        found.numpy(), advantages_by_definition(rewards, values, discount, smoothing), atol=1e-12
    )


def test_with_full_smoothing_advantages_are_the_discounted_return_less_the_value() -> None:
    rewards, values = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [1.0], [2.0], [0.0]])
    found = generalised_advantages(rewards, values, 0.5, 1.0)
    assert found[0, 0] == pytest.approx(1 + 0.5 * 2 + 0.25 * 4 - 0.5)


def test_the_look_ahead_is_the_design_of_the_other_policies() -> None:
    states = [make_state(known=5, seed=i) for i in range(3)]
    observed = np.concatenate([state.scores for state in states])
    lines = estimator().linearize(observed)  # type: ignore[attr-defined]
    ahead = Lookahead(
        lines, torch.from_numpy(history().weights).float(), torch.from_numpy(~np.isnan(observed))
    )
    designs = [row_designs(estimator().linearize(s.scores), s)[0] for s in states]  # type: ignore[attr-defined]
    for _ in range(3):
        wanted = np.stack([design.score_gains() for design in designs])
        np.testing.assert_allclose(ahead.gains().numpy(), wanted, rtol=2e-4, atol=1e-8)
        columns = [
            int(np.where(np.isnan(s.scores[0]), w, -1).argmax()) for s, w in zip(states, wanted, strict=True)
        ]
        ahead.take(torch.tensor(columns))
        for design, column in zip(designs, columns, strict=True):
            design.take(column)


def test_an_untrained_policy_follows_the_expected_gain() -> None:
    state = make_state(known=5)
    policy = trained(updates=1, rate=1e-12, batch=1)
    greedy = build_policy("expected-variance-reduction").select(state, 4)
    assert policy.select(state, 4).columns.tolist() == greedy.columns.tolist()


def test_potentials_are_errors_of_what_is_not_known() -> None:
    truth = np.array([[1.0, 0.0, np.nan, 1.0]])
    observed = np.array([[1.0, np.nan, np.nan, np.nan]])
    mean = np.array([[1.0, 0.5, 0.9, 0.5]])
    quarter = np.full(4, 0.25)
    assert potential("mse", mean, observed, truth, quarter) == pytest.approx([-0.25])
    assert potential("score", mean, observed, truth, quarter) == pytest.approx([0.0])  # the errors cancel out


def test_rewards_add_up_to_the_whole_rise_however_they_are_spread() -> None:
    each, last = play(), play(intermediate=False)
    assert each.rewards.shape == (5, 6)
    assert each.values.shape == (6, 6)
    assert (last.rewards[:-1] == 0).all()
    torch.testing.assert_close(last.rewards.sum(0), each.rewards.sum(0))


def play(**changes: Any) -> Any:
    frozen = Representation.freeze(history(), estimator())
    torch.manual_seed(0)
    network = ActorCritic(frozen.vectors.shape[1], 32, auxiliary=True, prior=3.0)
    settings: Small = {"prompts": 10, "batch": 2, "kind": "score", "scale": 1.0}
    settings |= {"intermediate": True, "generator": torch.Generator().manual_seed(1), **changes}
    vectors = torch.from_numpy(frozen.vectors).float()
    rows = history().rows(np.arange(6))
    truth = rows.values.astype(float)
    return roll_out(network, vectors, estimator(), truth, rows.weights.astype(float), **settings)


def test_episodes_choose_only_what_is_there_and_nothing_twice() -> None:
    played = play()
    by_episode = played.actions.reshape(5, 6, 2).permute(1, 0, 2).reshape(6, -1)
    for chosen in by_episode.tolist():
        assert len(set(chosen)) == len(chosen)
    first = played.views.free[:6]
    assert first.gather(1, played.actions[:6]).all()


def test_chances_of_a_decision_sum_to_one_over_what_is_left() -> None:
    played = play()
    frozen = Representation.freeze(history(), estimator())
    torch.manual_seed(0)
    network = ActorCritic(frozen.vectors.shape[1], 32, auxiliary=True, prior=3.0)
    vectors = torch.from_numpy(frozen.vectors).float()
    with torch.no_grad():
        h, _ = network(played.views, vectors)
        shares = log_shares(network, h, played.views, played.gains, played.actions, vectors).exp()
    torch.testing.assert_close(shares.sum(2), torch.ones(30, 2))
    assert (shares[:, 1].gather(1, played.actions[:, :1]) == 0).all()
    assert (shares[:, 0].masked_select(~played.views.free) == 0).all()


def test_an_update_makes_good_decisions_likelier() -> None:
    frozen = Representation.freeze(history(), estimator())
    torch.manual_seed(0)
    network = ActorCritic(frozen.vectors.shape[1], 32, auxiliary=True, prior=3.0)
    vectors = torch.from_numpy(frozen.vectors).float()
    played = play()
    # Reward choosing the first half of the prompts, whatever it does to the error.
    good = (played.actions < 12).float().sum(1).reshape(5, 6)
    played = played._replace(rewards=good, values=torch.zeros(6, 6))
    settings = PpoSettings(discount=0.0, rate=1e-2, epochs=4, minibatch=16, entropy=0.001)
    optimiser = torch.optim.Adam(network.parameters(), lr=settings.rate)
    figures = update(network, optimiser, played, vectors, settings, torch.Generator().manual_seed(0))
    assert all(np.isfinite(value) for value in figures.values())
    with torch.no_grad():
        h, _ = network(played.views, vectors)
        shares = log_shares(network, h, played.views, played.gains, played.actions, vectors)
    now = shares.gather(2, played.actions[:, :, None])[:, :, 0].sum(1)
    change = (now - played.log_probability).reshape(5, 6)
    assert change[good == 2].mean() > change[good == 0].mean()


def test_training_learns_which_prompts_are_worth_asking() -> None:
    """Half of the prompts are coin flips that say nothing; with no prior, training must find that out."""
    rng = np.random.default_rng(0)
    ability = rng.normal(size=(60, 1))
    told = (ability + 0.3 * rng.normal(size=(60, 10)) > np.linspace(-1, 1, 10)).astype(float)
    values = np.hstack([told, rng.integers(0, 2, (60, 10))])
    matrix = ScoreMatrix.build(values, weights=np.r_[np.full(10, 0.099), np.full(10, 0.001)])
    fitted = make_estimator("linear-gaussian").fit(matrix)
    policy = PpoPolicy(
        updates=25,
        episodes=64,
        prompts=4,
        first_prompts=4,
        batch=1,
        auxiliary=False,
        rate=3e-3,
        minibatch=64,
        most_kl=1.0,
    )
    policy.prepare(matrix, fitted)
    first, last = (
        np.mean([figures["error"] for figures in part]) for part in (policy.curve[:3], policy.curve[-3:])
    )
    assert last < 0.8 * first
    assert (policy.select(blank(matrix, fitted), 4).columns < 10).sum() >= 3


def test_the_same_seed_gives_the_same_policy_and_another_another() -> None:
    assert same(trained(seed=1), trained(seed=1))
    assert not same(trained(seed=1), trained(seed=2))


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    fitted = make_estimator("linear-gaussian").fit(history())
    settings = {**SETTINGS, "updates": 7, "folds": 2, "validation": 0.5}
    whole = PpoPolicy(**settings)
    whole.train(history(), fitted)

    class StoppedError(Exception):
        pass

    def kill(number: int, figures: dict[str, float]) -> None:
        if number == 6:  # after the checkpoint of update 5
            raise StoppedError

    begun = PpoPolicy(**settings)
    with pytest.raises(StoppedError):
        begun.train(history(), fitted, checkpoint=tmp_path, on_update=kill)
    seen: list[int] = []
    resumed = PpoPolicy(**settings)
    resumed.train(history(), fitted, checkpoint=tmp_path, on_update=lambda n, _: seen.append(n))
    assert seen == [6, 7]
    assert same(resumed, whole)
    assert resumed.curve == whole.curve


def test_what_was_saved_chooses_the_same_without_training(tmp_path: Path) -> None:
    policy = trained()
    policy.save(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}
    other = PpoPolicy()
    other.restore(tmp_path)
    other.prepare(history(), estimator())
    assert other.settings == policy.settings
    state = make_state(known=4)
    assert other.select(state, 6).columns.tolist() == policy.select(state, 6).columns.tolist()


def test_a_spoilt_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no complete policy"):
        PpoPolicy().restore(tmp_path)
    trained().save(tmp_path)
    content = bytearray((tmp_path / "policy.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "policy.safetensors").write_bytes(bytes(content))
    with pytest.raises(BadInputError, match="checksum"):
        PpoPolicy().restore(tmp_path)


def test_weights_are_chosen_on_rows_kept_back() -> None:
    """Steps so large that they spoil the policy: what it began with is better, and is what is left."""
    spoilt = {**SETTINGS, "updates": 4, "folds": 2, "validation": 0.5, "batch": 1, "prior": 8.0}
    policy = trained(**spoilt, rate=3.0, epochs=20, most_kl=1e9)
    begun = trained(**{**spoilt, "updates": 1, "rate": 1e-12})
    chosen, errors = same(policy, begun), [figures["validation_error"] for figures in policy.curve]
    assert errors == sorted(errors, reverse=True)
    assert chosen == (errors[-1] == errors[0])


def test_curves_hold_what_is_worth_watching() -> None:
    curve = trained().curve
    assert len(curve) == SETTINGS["updates"]
    wanted = {"return", "approximate_kl", "clip_fraction", "entropy", "value_loss", "explained_variance"}
    assert wanted <= curve[0].keys()
    assert all(np.isfinite(value) for figures in curve for value in figures.values())


def test_rewards_come_from_estimators_that_have_not_seen_the_row() -> None:
    parts = crossfits(history(), make_estimator("linear-gaussian").fit(history()), 3, seed=0)
    played = [name for part in parts for name in part.rows.method_ids]
    assert sorted(played) == sorted(history().method_ids)
    few = history().rows(np.arange(5))
    assert crossfits(few, estimator(), 3, seed=0)[0].estimator is estimator()


def test_prompts_added_after_training_can_be_chosen() -> None:
    policy = trained()
    values = np.hstack([history().values, np.random.default_rng(0).integers(0, 2, (40, 4))])
    names = [*(history().datasets[i] for i in history().dataset_index), *["d0"] * 4]
    ids = [*history().prompt_ids, *(f"new{i}" for i in range(4))]
    wider = ScoreMatrix.build(values, prompt_datasets=names, prompt_ids=ids)
    fitted = make_estimator("linear-gaussian").fit(wider)
    policy.prepare(wider, fitted)
    assert policy._vectors is not None
    np.testing.assert_allclose(policy._vectors[:24], policy._frozen.vectors, rtol=1e-6)  # type: ignore[union-attr]
    assert set(policy.select(blank(wider, fitted), 28).columns.tolist()) == set(range(28))


def test_dear_prompts_are_chosen_later() -> None:
    policy, state = trained(), make_state(known=3)
    first = int(policy.select(state, 1).columns[0])
    cost = np.ones(state.scores.shape)
    cost[0, first] = 1e4
    order = policy.select(make_state(known=3, cost=cost), 21).columns.tolist()
    assert order.index(first) > 0


def test_it_works_with_an_estimator_that_has_no_latent() -> None:
    fitted = make_estimator("ridge").fit(history())
    policy = PpoPolicy(**SETTINGS)
    policy.prepare(history(), fitted)
    assert len(policy.select(make_state(known=4, estimator=fitted), 3)) == 3


def test_pending_prompts_count_as_answered() -> None:
    state = make_state(known=3)
    free = torch.from_numpy(state.candidates)
    pending = torch.zeros_like(free)
    pending[0, free[0].nonzero()[0, 0]] = True
    before, _, _ = look(estimator(), state.scores, free, state.weights)
    after, _, _ = look(estimator(), state.scores, free & ~pending, state.weights, None, pending)
    assert after.progress[0, 1] < before.progress[0, 1]


def test_wrong_settings_and_an_untrained_policy_are_refused() -> None:
    with pytest.raises(UsageError, match="no setting 'updtes'"):
        PpoPolicy(updtes=3)
    with pytest.raises(UsageError, match="at least 1"):
        PpoPolicy(updates=0)
    with pytest.raises(NotFittedError, match="not trained"):
        PpoPolicy().select(make_state(), 1)
    with pytest.raises(NotFittedError, match="not trained"):
        PpoPolicy().save(Path("nowhere"))
