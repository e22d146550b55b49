"""The whole system as it runs: real processes, the bundled broker, real Celery workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo import _formats, run_demo
from agent.demo._run import Progress
from agent.supervisor import Supervisor, embedded_children
from storage.tables import StudyState
from tests.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World.open(tmp_path, sweep_s=5.0).with_history()
    yield opened
    opened.database.close()


@pytest.mark.slow
def test_a_study_runs_through_celery_workers(world: World) -> None:
    study = world.add_study(world.add_model("m17"), max_prompts=12)
    children = embedded_children(world.settings, workers=1, web=False, port=1)
    environment = {
        "ASSAY_DATA_DIR": str(world.settings.data_dir),
        "ASSAY_BATCH_SIZE": "5",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    supervisor = Supervisor(children, world.settings, environment)
    try:
        supervisor.start()
        until = time.monotonic() + 100
        while world.study(study).state in (StudyState.WAITING, StudyState.RUNNING):
            assert time.monotonic() < until, world.study(study).reason
            supervisor.watch()
            time.sleep(0.05)
    finally:
        supervisor.stop()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 12
    assert all(child.restarts == 0 for child in children)
    world.check_money()


@pytest.mark.slow
def test_the_demo_ends_with_an_estimate_of_the_new_model(tmp_path: Path) -> None:
    told: list[Progress] = []
    result = run_demo(tmp_path / "demo", told.append)
    assert (result.calls, result.full_calls) == (60, 360)
    assert 0 < result.spent_usd <= result.cap_usd
    assert result.low <= result.score <= result.high
    assert abs(result.score - result.true_score) < 0.15
    assert result.model in [row.method for row in result.board.rows]
    bought = [progress.bought for progress in told]
    assert bought == sorted(bought)


@pytest.mark.slow
def test_the_demo_of_formats_ends_with_quantiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_formats, "CELLS", 120)
    monkeypatch.setattr(_formats, "VARIANTS", 12)
    result = _formats.run_formats_demo(tmp_path / "demo", lambda _: None)
    assert (result.calls, result.full_calls, result.templates) == (120, 720, 12)
    assert result.spent_usd <= result.cap_usd
    assert all(
        low <= value <= high
        for low, value, high in zip(result.low, result.estimated, result.high, strict=True)
    )
    assert result.w1 < 0.15
