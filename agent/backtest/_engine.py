"""Running a backtest: tasks over processes, finished ones kept in a work file, results put together."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from agent.backtest._journal import Journal
from agent.backtest._settings import BacktestSettings
from agent.backtest._splits import Split, build_splits
from assay.plugins import Registry
from policies import POLICIES

__all__ = ["OBJECTIVES", "Objective", "Task", "run_backtest"]

Record = dict[str, Any]
SPLIT_STRIDE = 100_003  # between the draw seeds of two splits
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """One piece of work that is done, and recorded, as a whole.

    Attributes:
        stage: Tasks of stage 0 are all done before those of stage 1 start.
        policy: Policy name ("" where the task is about an estimator alone).
        estimator: Estimator name.
        seed: Seed, 0, 1, ...
        split: Which of the splits.
    """

    stage: int
    policy: str
    estimator: str
    seed: int
    split: int

    @property
    def draw_seed(self) -> int:
        """Seed of what is drawn in this split: a row that is tested in several splits draws anew in each.

        Otherwise more splits would be the same evidence again. The first split draws as a live study does.
        """
        return self.seed + SPLIT_STRIDE * self.split

    @property
    def key(self) -> str:
        """Name of the task in the work file."""
        return "/".join(str(part) for part in asdict(self).values())


class Objective(Protocol):
    """What kind of study is replayed: how it divides into tasks, and which metrics come out.

    Attributes:
        default_estimator: The estimator where none is named.
        needs_history: Whether a matrix that nobody divided into history and test rows is refused.
    """

    default_estimator: str
    needs_history: bool

    def check(self, settings: BacktestSettings, splits: Sequence[Split]) -> None:
        """Raise UsageError where the settings do not suit the objective or the matrix."""
        ...

    def tasks(self, settings: BacktestSettings, splits: int) -> list[Task]:
        """All the work, in any order within a stage."""
        ...

    def run(self, task: Task, settings: BacktestSettings, split: Split, folder: Path) -> Record:
        """Do one task; `folder` is shared by all tasks of the backtest. Returns a JSON-able record."""
        ...

    def summarise(
        self, settings: BacktestSettings, splits: Sequence[Split], records: dict[Task, Record]
    ) -> list[Record]:
        """Result entries from the records of all tasks."""
        ...


OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    "assay.objectives",
    {
        "best": "agent.backtest._best:BestObjective",
        "compare": "agent.backtest._compare:CompareObjective",
        "distribution": "agent.backtest._distribution:DistributionObjective",
        "estimate": "agent.backtest._estimate:EstimateObjective",
    },
)


def run_backtest(
    settings: BacktestSettings,
    *,
    jobs: int = 1,
    work: Path | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Replay policies x estimators x budgets x seeds on a matrix.

    Args:
        settings: What to do.
        jobs: Processes, one thread each; 1 runs in this process.
        work: Folder that keeps what is finished until all is; the same call goes on from there. Default none.
        on_progress: Called with (tasks done, tasks in all, what was done last).

    Returns:
        {"settings": {...}, "results": [{"policy", "estimator", "budget", "seed", ...metrics}]}.

    Raises:
        UsageError: The settings make no sense, or `work` belongs to a backtest with other settings.
        BadInputError: A matrix folder cannot be read.
    """
    objective = OBJECTIVES.get(settings.objective)()
    if not settings.estimators:
        settings = replace(settings, estimators=(objective.default_estimator,))
    settings.check(getattr(objective, "policies", POLICIES))
    splits = build_splits(settings, needs_history=objective.needs_history)
    objective.check(settings, splits)
    tasks = objective.tasks(settings, len(splits))
    folder = Path(tempfile.mkdtemp(prefix="assay-backtest-")) if work is None else work
    with (
        Journal(folder, settings.to_json()) as journal,
        _runner(_Worker(settings, splits, folder), min(jobs, len(tasks))) as run_all,
    ):
        done = journal.records(tasks)
        for stage in sorted({task.stage for task in tasks}):
            todo = [task for task in tasks if task.stage == stage and task not in done]
            for task, record in run_all(todo):
                journal.add(task, record)
                done[task] = record
                if on_progress is not None:
                    on_progress(len(done), len(tasks), _label(task))
    results = objective.summarise(settings, splits, done)
    shutil.rmtree(folder, ignore_errors=True)
    return {"settings": settings.to_json(), "results": results}


def _label(task: Task) -> str:
    what = f"{task.policy}, {task.estimator}" if task.policy else f"fit {task.estimator}"
    return f"{what}, seed {task.seed}"


class _Worker:
    """Runs tasks with one thread each."""

    def __init__(self, settings: BacktestSettings, splits: list[Split], folder: Path) -> None:
        self.settings, self.splits, self.folder = settings, splits, folder
        self.objective = OBJECTIVES.get(settings.objective)()

    def run(self, task: Task) -> Record:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        with threadpool_limits(1):
            return self.objective.run(task, self.settings, self.splits[task.split], self.folder)


RunAll = Callable[[Sequence[Task]], Iterator[tuple[Task, Record]]]
_worker: _Worker | None = None  # of a worker process


def _start_worker(worker: _Worker) -> None:
    global _worker
    _worker = worker


def _run_task(task: Task) -> Record:
    if _worker is None:
        raise RuntimeError("the worker process was not started")
    return _worker.run(task)


@contextmanager
def _runner(worker: _Worker, jobs: int) -> Iterator[RunAll]:
    """What runs tasks and gives them with their records, as they finish."""
    if jobs <= 1:
        yield lambda tasks: ((task, worker.run(task)) for task in tasks)
        return
    with (
        _one_thread(),
        ProcessPoolExecutor(
            jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(worker,),
        ) as pool,
    ):

        def run_all(tasks: Sequence[Task]) -> Iterator[tuple[Task, Record]]:
            futures: dict[Future[Record], Task] = {pool.submit(_run_task, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()

        try:
            yield run_all
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Numeric libraries of the processes that are started use one thread each."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
