"""A learned policy as a version: trained once, judged, promoted, used by a live study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.curves import save_curves
from assay.errors import AssayError, UsageError
from policies import POLICIES
from policies._ppo import PpoPolicy
from storage import catalog, versions
from storage.tables import EstimatorVersion, StudyState, VersionState
from tests.world import BENCHMARK, World
from workers.policy_training import judge, policy_errors, train_and_judge
from workers.training import train_version

SMALL: dict[str, Any] = {
    "updates": 3,
    "episodes": 8,
    "prompts": 8,
    "first_prompts": 4,
    "batch": 2,
    "minibatch": 16,
}


def want(world: World, *, policy: str = "", **params: Any) -> int:
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        return int(versions.want(session, benchmark, "linear-gaussian", params, policy=policy).id or 0)


def version(world: World, version_id: int) -> EstimatorVersion:
    with world.database.read() as session:
        return versions.find(session, version_id)


def with_policy(world: World) -> int:
    """History, a fitted estimator and a trained policy; the policy's version."""
    world.with_history(models=44)
    assert train_version(world.worker(), want(world))
    trained = want(world, policy="ppo", **SMALL)
    assert train_version(world.worker(), trained)
    return trained


def test_a_trained_policy_is_stored_with_its_verdict_and_curves(world: World) -> None:
    trained = with_policy(world)
    stored = version(world, trained)
    assert (stored.state, stored.policy) == (VersionState.CHAMPION, "ppo")
    assert stored.reason.startswith("the first version: held-out error")
    assert stored.validation["loss"] > 0
    assert stored.validation["uniform_loss"] > 0
    assert len(stored.history["findings"]["curve"]) == SMALL["updates"]
    assert stored.history["estimator_version"] == trained - 1
    assert [event.payload["policy"] for event in world.events("policy.promoted")] == ["ppo"]
    assert len(world.events("estimator.promoted")) == 1
    assert version(world, trained - 1).state == VersionState.CHAMPION  # the estimator's champion stays
    assert not list((world.settings.cache_dir / "training").iterdir())


def test_a_challenger_starts_from_the_champion_and_must_beat_it(world: World) -> None:
    trained = with_policy(world)
    again = want(world, policy="ppo", **SMALL)
    assert train_version(world.worker(), again)
    stored = version(world, again)
    assert stored.parent_id == trained
    better = stored.validation["loss"] < stored.validation["champion_loss"]
    assert stored.state == (VersionState.CHAMPION if better else VersionState.REJECTED)


def test_a_live_study_buys_what_the_champion_chooses(world: World) -> None:
    with_policy(world)
    method = world.add_model("m40")
    study = world.add_study(method, policy="ppo", policy_params=SMALL, max_prompts=12)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 12
    world.check_money()


def test_without_a_champion_the_study_pauses_and_says_what_to_do(world: World) -> None:
    world.with_history()
    study = world.add_study(world.add_model("m17"), policy="ppo")
    world.settle()
    found = world.study(study)
    assert found.state == StudyState.PAUSED
    assert "has not been trained on 'trivia' with estimator 'linear-gaussian'" in found.reason
    assert "assay retrain trivia --policy ppo --estimator linear-gaussian" in found.reason
    assert world.acquired() == []


def test_without_its_estimator_a_policy_cannot_be_trained(world: World) -> None:
    world.with_history()
    asked = want(world, policy="ppo", **SMALL)
    assert not train_version(world.worker(), asked)
    assert "there is no estimator 'linear-gaussian'" in version(world, asked).reason
    assert [event.payload["policy"] for event in world.events("policy.failed")] == ["ppo"]


def test_a_policy_that_is_not_learned_is_refused(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(AssayError, match="'uniform' is not learned"):
        train_and_judge("uniform", {}, nothing, nothing, nothing, parent=None, checkpoint=tmp_path)


def test_a_worse_challenger_is_rejected_and_few_methods_are_not_judged() -> None:
    from tests.policies.factory import build_policy, estimator, history

    learned, unseen = history().rows(np.arange(30)), history().rows(np.arange(30, 40))
    good, bad = build_policy("expected-variance-reduction"), build_policy("uniform")
    errors = [policy_errors(policy, estimator(), learned, unseen).mean() for policy in (good, bad)]
    verdict = judge(bad, good, estimator(), learned, unseen)
    assert verdict[0] == (VersionState.REJECTED if errors[1] >= errors[0] else VersionState.CHAMPION)
    assert verdict[2]["champion_loss"] == pytest.approx(errors[0])
    assert judge(bad, good, estimator(), learned, history().rows(np.arange(0)))[0] == VersionState.CHAMPION


def test_only_what_can_be_trained_is_a_learned_policy() -> None:
    from policies import SupportsTraining

    learned = [name for name in POLICIES.names() if issubclass(POLICIES.get(name), SupportsTraining)]
    assert learned == ["ppo"]
    assert isinstance(PpoPolicy(), SupportsTraining)


def test_training_curves_are_drawn_from_what_is_stored(world: World, tmp_path: Path) -> None:
    trained = with_policy(world)
    save_curves(version(world, trained).history["findings"]["curve"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UsageError, match="no training curves"):
        save_curves([], tmp_path / "none.png")
