"""Estimators that are fitted once and shared by the tasks of a backtest, over processes and interruptions."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.backtest._splits import Split
from estimators import Estimator, estimator_for
from estimators._artifact import load_estimator

if TYPE_CHECKING:
    from agent.backtest._engine import Task

__all__ = ["fit_and_save", "fit_folder", "fitted"]


def fit_folder(task: Task, folder: Path) -> Path:
    """Where the fitted estimator of a task's estimator, seed and split lies, under the backtest's folder."""
    name = f"{task.estimator}/{task.seed}/{task.split}"
    return folder / f"fit-{sha256(name.encode()).hexdigest()[:16]}"


def fit_and_save(task: Task, split: Split, folder: Path) -> dict[str, Any]:
    """Fit the task's estimator to the split's history and keep it; the record has its fit_seconds."""
    history = split.history
    start = time.perf_counter()
    estimator = estimator_for(history, task.estimator, {"seed": task.seed}).fit(history)
    seconds = time.perf_counter() - start
    estimator.save(fit_folder(task, folder))
    return {"fit_seconds": seconds}


def fitted(task: Task, folder: Path) -> Estimator:
    """The estimator that `fit_and_save` kept."""
    return load_estimator(fit_folder(task, folder))
