"""Workers that are told to stop: calls in flight are finished, the rest goes back, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.supervisor import broker_command
from benchmarks._workload import Workload, fill, rows
from benchmarks.endpoint import Behaviour, LocalEndpoint, serving
from workers import broker

PATIENCE_S = 60.0


class Site:
    """A broker, an endpoint, and workers that come and go."""

    def __init__(self, folder: Path, endpoint: LocalEndpoint, jobs: int) -> None:
        self.endpoint = endpoint
        self.load: Workload = fill(
            folder, endpoint.url, jobs, max_in_flight=4, settings={"redispatch_s": 2.0}
        )
        self._environment = {**os.environ, **self.load.settings.environment(), "OMP_NUM_THREADS": "1"}
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []
        self.start("broker", broker_command(self.load.settings))
        broker.ping(self.load.settings.broker, PATIENCE_S)

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("ab") as log:
            running = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        self._running.append(running)
        return running

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "agent", "worker", "--queues", "inference", "--threads", "2"]
        running = self.start(name, command)
        until(lambda: " ready." in (self._logs / f"{name}.log").read_text())
        return running

    def stop(self) -> None:
        for running in reversed(self._running):
            running.kill()
            running.wait()
        self.load.database.close()

    def count(self, state: str) -> int:
        return int(rows(self.load.database, f"SELECT count(*) FROM job WHERE state = '{state}'")[0][0])

    @property
    def calls(self) -> int:
        return sum(self.endpoint.tries.values())


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)


@contextmanager
def site(folder: Path, jobs: int) -> Iterator[Site]:
    with serving(Behaviour(latency_s=0.3)) as endpoint:
        opened = Site(folder, endpoint, jobs)
        try:
            yield opened
        finally:
            opened.stop()


@pytest.mark.services
def test_a_worker_that_is_told_to_stop_finishes_its_calls_and_gives_back_the_rest(tmp_path: Path) -> None:
    with site(tmp_path, 40) as here:
        worker = here.worker("first")
        here.load.send(20)
        until(lambda: here.calls >= 8)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
        assert here.count("leased") == 0
        assert here.count("done") == here.calls < 40  # every call that was made is stored
        assert here.count("queued") == 40 - here.calls
        here.worker("second")
        until(lambda: here.count("done") == 40)
        assert here.calls == 40  # none was made twice
        assert {row.attempts for row in rows(here.load.database, "SELECT attempts FROM job")} == {1}


@pytest.mark.services
def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    with site(tmp_path, 150) as here:
        workers = [here.worker(f"old-{i}") for i in range(2)]
        here.load.send(10)
        for i, worker in enumerate(workers):
            before = here.calls
            until(lambda before=before: here.calls >= min(150, before + 6))
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE_S) == 0
            here.worker(f"new-{i}")
        until(lambda: here.count("done") == 150)
        assert here.calls == 150
        assert rows(here.load.database, "SELECT count(*) FROM score")[0][0] == 150
