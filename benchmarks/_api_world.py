"""A small filled database behind a running service, for measurements that talk to the API."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from agent import steering
from agent.steering import StudyOrder
from assay.settings import Settings
from assay.specs import ModelSpec, Price
from storage import catalog, studies, tokens
from storage.database import Database
from storage.importing import Rows, import_rows
from storage.tables import StudyState

__all__ = ["Service", "filled_database", "running_service"]

START_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Service:
    """A running service.

    Attributes:
        url: Where it listens.
        token: A token with the scope admin.
    """

    url: str
    token: str


def filled_database(folder: Path, seed: int = 0) -> str:
    """Fill `folder` with a benchmark of 12 models and 40 prompts, and studies in several states.

    Returns:
        An admin token.
    """
    database = Database(f"sqlite:///{folder / 'assay.db'}")
    database.create_or_check()
    rng, rows = np.random.default_rng(seed), Rows("made up")
    for i in range(12):
        for j in range(40):
            score = float(rng.random() < 0.3 + 0.05 * i)
            place = f"cell {i}, {j}"
            rows.add(
                place, model=f"m{i}", dataset=f"d{j % 2}", prompt_id=f"p{j}", score=score, prompt=f"{j}?"
            )
    import_rows(database, rows, "trivia")
    with database.begin() as session:
        for i in range(4):
            spec = ModelSpec(name=f"new-{i}", backend="replay", matrix="/nowhere", price=Price(free=True))
            catalog.add_model(session, spec)
        order = StudyOrder("trivia", [f"new-{i}" for i in range(4)], max_prompts=10)
        first, second, third, _ = steering.order(session, Settings(data_dir=folder), order)
        studies.move(session, first, StudyState.RUNNING)
        studies.move(session, first, StudyState.DONE, "enough")
        steering.pause(session, second)
        steering.cancel(session, third)
        _, token = tokens.create(session, "measuring", "admin")
    database.close()
    return token


@contextmanager
def running_service(folder: Path, **settings: str) -> Iterator[Service]:
    """`assay serve` over the filled folder, on a free port."""
    token = filled_database(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "ASSAY_DATA_DIR": str(folder), **settings}
    command = [sys.executable, "-m", "agent", "serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            yield Service(url, token)
        finally:
            process.terminate()


def _wait(url: str) -> None:
    until = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            httpx.get(f"{url}/readyz", timeout=1).raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
