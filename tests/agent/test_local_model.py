"""A model served by somebody else's server, and the same weights in the worker's own process."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.registration import add_prompts
from assay.specs import DatasetSpec, PromptSpec
from storage.tables import Output, StudyState
from tests.workers.tiny import some_prompts, write_tiny_model
from tests.world import World

pytestmark = [pytest.mark.services, pytest.mark.slow]

SERVE = Path(sys.executable).with_name("transformers")
PROMPTS = 12


@contextmanager
def served(weights: Path) -> Iterator[str]:
    """`transformers serve` on a free port of this machine, until it answers (about 15 s)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(SERVE), "serve", str(weights), "--host", "127.0.0.1", "--port", port, "--device", "cpu"]
    server = subprocess.Popen(
        command, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(20)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 110
    while time.monotonic() < until:
        assert server.poll() is None, "transformers serve ended"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("transformers serve does not answer")


@pytest.mark.timeout(300)
def test_served_and_local_weights_give_equal_greedy_answers(tmp_path: Path) -> None:
    """Item by item: the agent evaluates both, and jobs, answers, token counts and scores are the same."""
    if importlib.util.find_spec("transformers") is None or not SERVE.exists():
        pytest.skip("needs the extra `local`")
    weights = write_tiny_model(tmp_path / "weights")
    world = World.open(tmp_path, estimator="aggregate", max_prompts=PROMPTS)
    dataset = DatasetSpec(name="open", scorer="f1", score_type="real")
    prompts = [
        PromptSpec(id=f"p{i}", dataset="open", text=text, target="the fox")
        for i, text in enumerate(some_prompts(PROMPTS))
    ]
    with world.database.begin() as session:
        add_prompts(session, "tiny", [dataset], prompts)
    with served(weights) as url:
        world.add_model(
            "served", announce=True, base_url=url, model=str(weights), max_tokens=40, price={"free": True},
            timeout_s=100, max_in_flight=2,
        )  # fmt: skip
        world.settle()
    world.add_model(
        "local", announce=True, backend="transformers", model=str(weights), max_tokens=40, device="cpu"
    )
    world.settle()
    first, second = world.studies()
    assert (first.state, second.state) == (StudyState.DONE, StudyState.DONE), (first.reason, second.reason)

    def found(study: int) -> dict[int, tuple[str, str]]:
        return {job.prompt_id: (job.state, job.reason) for job in world.jobs(study)}

    assert found(first.id or 0) == found(second.id or 0)
    assert len(found(first.id or 0)) == PROMPTS
    outputs: list[Output] = world.outputs()
    methods = sorted({output.method_id for output in outputs})
    by_method = [
        {
            o.prompt_id: (o.text, o.finish_reason, o.input_tokens, o.output_tokens)
            for o in outputs
            if o.method_id == m
        }
        for m in methods
    ]
    assert len(by_method) == 2
    assert len(by_method[0]) >= PROMPTS // 2
    assert by_method[0] == by_method[1]
    scores = [{s.prompt_id: s.value for s in world.acquired() if s.method_id == m} for m in methods]
    assert scores[0] == scores[1]
    world.check_money()
    world.database.close()
