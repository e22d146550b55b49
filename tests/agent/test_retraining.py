"""Retraining: challengers, champions, triggers; and what a killed trainer leaves behind."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select
from typer.testing import CliRunner

from agent.cli import app
from agent.registration import add_prompts
from agent.retraining import want_due
from assay.specs import DatasetSpec, PromptSpec
from estimators import load_estimator
from estimators._linear_gaussian import LinearGaussianEstimator
from storage import catalog, versions
from storage.tables import Artifact, EstimatorVersion, VersionState, utc_now
from tests.world import BENCHMARK, World
from workers.training import train_version
from workers.validation import hold_out

NAME = "linear-gaussian"


@pytest.fixture
def history(tmp_path: Path) -> World:
    return World.open(tmp_path).with_history(models=60, tests=4)


def want(world: World, *, warm: bool = True, reason: str = "test") -> int:
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        return int(versions.want(session, benchmark, NAME, {}, warm=warm, reason=reason).id or 0)


def train(world: World) -> EstimatorVersion:
    version_id = want(world)
    assert train_version(world.worker(), version_id)
    return found(world, version_id)


def found(world: World, version_id: int) -> EstimatorVersion:
    with world.database.read() as session:
        return versions.find(session, version_id)


def due(world: World) -> list[int]:
    with world.database.begin() as session:
        return want_due(session, world.settings)


# --- champion and challenger -------------------------------------------------------------------------------


def test_the_first_version_is_judged_and_becomes_champion(history: World) -> None:
    first = train(history)
    assert first.state == VersionState.CHAMPION
    assert first.validation["rows"] >= 2
    assert 0 < first.validation["loss"] < 0.25
    learned = set(first.history["methods"])
    assert len(learned) + first.validation["rows"] == 56
    assert history.events("estimator.promoted")


def test_held_out_methods_stay_held_out(history: World) -> None:
    names = [f"m{i}" for i in range(56)]
    held = {name for name, out in zip(names, hold_out(names, 0.1), strict=True) if out}
    assert held.isdisjoint(train(history).history["methods"])
    more = [*names, *(f"later-{i}" for i in range(30))]
    assert held == {name for name, out in zip(more, hold_out(more, 0.1), strict=True) if out} & set(names)


def test_a_challenger_that_is_no_better_is_rejected(history: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(history)
    fit = LinearGaussianEstimator._fit

    def blind(self: Any, matrix: Any, warm_start: Any) -> None:
        fit(self, matrix, warm_start)
        self.model_.mean[:] = 0.01  # predicts nonsense

    monkeypatch.setattr(LinearGaussianEstimator, "_fit", blind)
    second = train(history)
    assert second.state == VersionState.REJECTED
    assert "against the champion's" in second.reason
    assert found(history, first.id or 0).state == VersionState.CHAMPION
    assert history.events("estimator.rejected")


def test_promotion_retires_the_old_champion_and_rollback_brings_it_back(history: World) -> None:
    first = train(history)
    second = train(history)
    with history.database.begin() as session:
        versions.crown(session, second.id or 0, "by hand")
    assert found(history, first.id or 0).state == VersionState.RETIRED
    env = {"ASSAY_DATA_DIR": str(history.settings.data_dir)}
    assert CliRunner().invoke(app, ["estimators", "rollback", str(second.id)], env=env).exit_code == 0
    assert found(history, first.id or 0).state == VersionState.CHAMPION
    assert found(history, second.id or 0).state == VersionState.RETIRED
    listed = CliRunner().invoke(app, ["estimators", "list", "--json"], env=env)
    assert listed.exit_code == 0
    assert '"champion"' in listed.stdout
    refused = CliRunner().invoke(app, ["estimators", "rollback", str(second.id)], env=env)
    assert refused.exit_code == 2


def test_one_at_a_time_per_benchmark(history: World) -> None:
    one = want(history)
    with history.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        other = int(versions.want(session, benchmark, "aggregate", {}).id or 0)
    with history.database.begin() as session:
        assert versions.claim_training(session, one, "a", timedelta(seconds=60)) is not None
    with history.database.begin() as session:
        assert versions.claim_training(session, other, "b", timedelta(seconds=60)) is None


# --- triggers ----------------------------------------------------------------------------------------------


def test_so_many_new_scores_start_a_retraining(history: World) -> None:
    history.settings.retrain_scores = 10
    train(history)
    assert due(history) == []
    history.add_study(history.add_model("m57"), max_prompts=10)
    history.settle()
    reasons = [version.reason for version in history.rows(EstimatorVersion)]
    assert len(reasons) == 2  # settling ran the sweeper, which asked for it, and the trainer
    assert due(history) == []  # counted from the last fit on


def test_new_prompts_start_a_retraining_from_the_old_champion(history: World) -> None:
    first = train(history)
    with history.database.begin() as session:
        spec = DatasetSpec(name="hard", scorer="replay")
        prompts = [PromptSpec(id=f"new{i}", dataset="hard", text=f"What is new {i}?") for i in range(4)]
        add_prompts(session, BENCHMARK, [spec], prompts)
    (asked,) = due(history)
    assert due(history) == []  # the request is open
    assert train_version(history.worker(), asked)
    second = found(history, asked)
    assert (second.state, second.parent_id) == (VersionState.CHAMPION, first.id)
    with history.database.read() as session:
        folder = versions.artifact_folder(session, asked, history.settings.cache_dir)
    assert load_estimator(folder).n_prompts_ == 40


def test_a_schedule_starts_a_retraining(history: World) -> None:
    first = train(history)
    history.settings.retrain_hours = 1.0
    assert due(history) == []
    with history.database.begin() as session:
        version = versions.find(session, first.id or 0)
        version.trained_at = utc_now() - timedelta(hours=2)
        session.add(version)
    assert len(due(history)) == 1


# --- kill -9 -----------------------------------------------------------------------------------------------

TRAINER = """
import sys
from pathlib import Path
from tests.world import World
from workers.training import train_version
world = World.open(Path(sys.argv[1]), lease_s=0.2)
print("ready", flush=True)
for version_id in map(int, sys.argv[2:]):
    train_version(world.worker("trainer"), version_id)
"""


@pytest.mark.slow
def test_a_killed_trainer_leaves_no_half_champion(history: World) -> None:
    moments = random.Random(7)
    first = train(history)
    for _ in range(4):
        wanted = want(history)
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(history.folder), str(wanted)], stdout=subprocess.PIPE
        )
        assert trainer.stdout is not None
        trainer.stdout.readline()
        time.sleep(moments.uniform(0.0, 1.5))
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
        check_versions(history)
        time.sleep(0.3)  # its lease runs out
        train_version(history.worker(), wanted)
        assert found(history, wanted).state in (VersionState.CHAMPION, VersionState.REJECTED)
    check_versions(history)
    assert found(history, first.id or 0).state in (VersionState.CHAMPION, VersionState.RETIRED)


def check_versions(world: World) -> None:
    """One champion, with a whole artifact and a verdict; no artifact of a version without a verdict."""
    with world.database.read() as session:
        all_ = session.exec(select(EstimatorVersion)).all()
        files = {a.version_id for a in session.exec(select(Artifact)).all()}
        champions = [version for version in all_ if version.state == VersionState.CHAMPION]
        assert len(champions) == 1
        for version in all_:
            judged = version.state in (VersionState.CHAMPION, VersionState.REJECTED, VersionState.RETIRED)
            assert judged == (version.id in files)
            assert not judged or version.validation["loss"] > 0
        folder = versions.artifact_folder(session, champions[0].id or 0, world.settings.cache_dir)
    assert load_estimator(folder).n_prompts_ == 36


# --- what people see ---------------------------------------------------------------------------------------


def test_shows_what_auto_chose_and_why(history: World) -> None:
    with history.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        version_id = int(versions.want(session, benchmark, "auto", {}).id or 0)
    assert train_version(history.worker(), version_id)
    env = {"ASSAY_DATA_DIR": str(history.settings.data_dir)}
    shown = CliRunner().invoke(app, ["estimators", "show", str(version_id)], env=env)
    assert shown.exit_code == 0
    assert "chosen" in shown.stdout
    assert "why" in shown.stdout
    assert "candidate linear-gaussian" in shown.stdout
