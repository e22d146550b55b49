"""Fitting versions: claimed once, stored whole, failing with a reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlmodel import select

from assay.errors import BadInputError
from estimators import Estimator, load_estimator
from estimators._aggregate import AggregateEstimator
from storage import catalog, versions
from storage.tables import Artifact, EstimatorVersion, VersionState
from tests.world import BENCHMARK, World
from workers.training import history_of, train_version


def want(world: World, estimator: str = "linear-gaussian", **params: Any) -> int:
    with world.database.begin() as session:
        benchmark = catalog.find_benchmark(session, BENCHMARK)
        return int(versions.want(session, benchmark, estimator, params).id or 0)


def version(world: World, version_id: int) -> EstimatorVersion:
    with world.database.read() as session:
        return versions.find(session, version_id)


def artifacts(world: World) -> list[Artifact]:
    with world.database.read() as session:
        return list(session.exec(select(Artifact)).all())


def test_a_fitted_version_is_stored_with_what_it_learned_from(world: World) -> None:
    world.with_history()
    version_id = want(world)
    assert train_version(world.worker(), version_id)
    stored = version(world, version_id)
    assert (stored.state, stored.attempts) == (VersionState.CHAMPION, 1)
    assert stored.history["methods"] == [f"m{i}" for i in range(16)]
    assert stored.history["scores"] == 16 * 36
    with world.database.read() as session:
        folder = versions.artifact_folder(session, version_id, world.settings.cache_dir)
    loaded = load_estimator(folder)
    assert loaded.name == "linear-gaussian"
    assert 0 < loaded.benchmark_score(np.full((1, 36), np.nan)).mean[0] < 1
    assert [event.payload["version_id"] for event in world.events("estimator.promoted")] == [version_id]


def test_a_version_is_fitted_once(world: World) -> None:
    world.with_history()
    version_id = want(world)
    assert train_version(world.worker("first"), version_id)
    assert not train_version(world.worker("second"), version_id)
    assert version(world, version_id).attempts == 1
    with world.database.begin() as session:
        versions.claim_training(session, other := want_again(session), "first", timedelta(seconds=60))
    assert not train_version(world.worker("second"), other)
    assert version(world, other).lease_owner == "first"


def want_again(session: Any) -> int:
    benchmark = catalog.find_benchmark(session, BENCHMARK)
    return int(versions.want(session, benchmark, "aggregate", {}).id or 0)


def test_an_abandoned_fit_is_taken_over(world: World) -> None:
    world.with_history()
    version_id = want(world)
    with world.database.begin() as session:
        versions.claim_training(session, version_id, "dead", timedelta(seconds=-1))
    assert train_version(world.worker("alive"), version_id)
    assert version(world, version_id).attempts == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadInputError("too few rows", "import more"), "too few rows (import more)"),
        (ZeroDivisionError("oops"), "unexpected ZeroDivisionError: oops"),
    ],
)
def test_a_fit_that_fails_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    world.with_history()
    version_id = want(world, "aggregate")

    def fail(self: Estimator, history: Any, *, warm_start: Any = None) -> Estimator:
        raise error

    monkeypatch.setattr(AggregateEstimator, "fit", fail)
    assert not train_version(world.worker(), version_id)
    assert (version(world, version_id).state, version(world, version_id).reason) == ("failed", reason)
    assert [event.payload["reason"] for event in world.events("estimator.failed")] == [reason]
    assert artifacts(world) == []


@pytest.mark.parametrize("fails", [False, True])
def test_who_lost_the_lease_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    world.with_history()
    version_id = want(world, "aggregate")
    fit = AggregateEstimator.fit

    def taken_over(self: Estimator, history: Any, *, warm_start: Any = None) -> Any:
        with world.database.begin() as session:
            stolen = versions.find(session, version_id)
            stolen.lease_owner = "thief"
            session.add(stolen)
        if fails:
            raise BadInputError("too late")
        return fit(self, history)

    monkeypatch.setattr(AggregateEstimator, "fit", taken_over)
    assert not train_version(world.worker("slow"), version_id)
    found = version(world, version_id)
    assert (found.state, found.lease_owner) == (VersionState.TRAINING, "thief")
    assert artifacts(world) == []
    assert world.events("estimator.promoted") == world.events("estimator.failed") == []


def test_history_is_the_rows_with_at_least_half_of_the_weight_scored(world: World) -> None:
    from assay.matrix import ScoreMatrix

    values = np.ones((3, 4))
    values[1, :2] = np.nan
    values[2, :3] = np.nan
    matrix = ScoreMatrix.build(values, prompt_datasets=["a", "a", "b", "b"])
    assert history_of(matrix).method_ids == ("method-0", "method-1")
