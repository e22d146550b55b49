"""A running system behind a real server: an agent and inline workers in one thread, the pages in another."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from agent.loop import Agent
from agent.web import create_app
from tests.world import World

KINDS = ("amber", "basalt", "cobalt", "dune", "ember", "fjord", "garnet", "heron", "iris", "jasper")
SIZES = ("70b", "13b", "7b")
NEW = ("otter-3b", "lynx-9b", "falconet-40b", "osprey-14b")
NAMES = [f"{kind}-{SIZES[i % 3]}" for i, kind in enumerate((*KINDS, *(f"{kind}2" for kind in KINDS)))] + [
    *NEW
]
SETS = {
    "arithmetic": "A shop sells {} pens a day. How many pens does it sell in {} weeks?",
    "history": "Which of these treaties was signed first, and in which year? Case {} of {}.",
    "law": "A tenant leaves {} months before the lease ends. Who owes the rent, and why? ({})",
    "spelling": "Write the plural of word {} in list {} and use it in a sentence.",
}


def write_benchmark(folder: Path, *, tests: int = 4, prompts: int = 120, seed: int = 3) -> Path:
    """A matrix folder of named models on four datasets; the last `tests` models are to be evaluated."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    ability = rng.normal(0.9, 0.8, (len(NAMES), 1)) + rng.normal(0, 0.35, (len(NAMES), len(SETS))).repeat(
        prompts // len(SETS), axis=1
    )
    difficulty, slope = rng.normal(0.0, 1.2, (1, prompts)), rng.gamma(4.0, 0.35, (1, prompts))
    slope[0, :: prompts // 5] *= -0.6  # a few wrong reference answers
    chance = 1 / (1 + np.exp(-slope * (ability - difficulty)))
    np.savez(folder / "scores.npz", scores=(rng.random(chance.shape) < chance).astype(np.int8))
    lines = [
        json.dumps({"id": f"{j:04d}", "dataset": name, "text": text.format(j + 2, j % 7 + 2)})
        for j, (name, text) in enumerate((n, t) for n, t in SETS.items() for _ in range(prompts // len(SETS)))
    ]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    splits = ["train"] * (len(NAMES) - tests) + ["test"] * tests
    rows = [f"{name},{split}" for name, split in zip(NAMES, splits, strict=True)]
    (folder / "models.csv").write_text("model,split\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def open_world(folder: Path, **settings: Any) -> World:
    """A world whose benchmark "trivia" has the named models."""
    from storage.importing import import_matrix_folder
    from tests.world import BENCHMARK

    world = World.open(folder, estimator="linear-gaussian", **settings)
    write_benchmark(world.matrix)
    import_matrix_folder(world.database, world.matrix, BENCHMARK, rows="train")
    return world


@contextmanager
def working(world: World, pause_s: float = 0.0) -> Iterator[None]:
    """Agent and workers go on in a thread; `pause_s` between rounds makes a study last."""
    stop = threading.Event()

    def work() -> None:
        agent = Agent(world.agent_context())
        while not stop.is_set():
            agent.tick()
            world.work()
            stop.wait(pause_s)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def served(world: World) -> Iterator[str]:
    """The pages behind a real server on a free port; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(world.settings)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        app.state.database.close()
