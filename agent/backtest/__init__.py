"""Replay policies and estimators on a complete score matrix: what would they have reported, and how wrong?"""

from __future__ import annotations

from agent.backtest._engine import OBJECTIVES, Objective, Task, run_backtest
from agent.backtest._replay import Replay, replay
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split, build_splits

__all__ = [
    "OBJECTIVES",
    "BacktestSettings",
    "Objective",
    "Replay",
    "Split",
    "Task",
    "build_splits",
    "replay",
    "run_backtest",
]
