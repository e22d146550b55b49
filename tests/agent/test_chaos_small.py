"""A small kill test: the whole system, four kills. The full one is `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._chaos_world import ChaosPlan
from benchmarks.chaos import run_chaos


@pytest.mark.services
@pytest.mark.timeout(300)
def test_everything_holds_after_a_few_kills(tmp_path: Path) -> None:
    plan = ChaosPlan(seed=5, kills=4, gap_s=(0.2, 2.0), max_prompts=40, latency_ms=100.0, patience_s=120.0)
    result = run_chaos(tmp_path, "", plan)
    assert sum(result.killed.values()) == plan.kills
    failed = [check for check in result.checks if not check.holds]
    # On a fast machine so small a run may end before its last kill.
    assert [check for check in failed if not check.what.startswith("every kill")] == []
