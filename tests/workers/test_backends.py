"""What every backend must keep, and what each does about what can go wrong."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.errors import AssayError, UsageError
from assay.specs import ModelSpec
from tests.workers.endpoint import Endpoint
from tests.world import write_matrix
from workers.backends import BACKENDS, Answer, CallError, Request
from workers.backends._command import end_programs

#: The least that a program of the backend `command` must do.
ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"id": asked["id"], "text": asked["prompt"]}), flush=True)
"""


def ask(spec: ModelSpec, *requests: Request) -> list[Answer | CallError]:
    """Ask a backend everything at once, as a worker does; errors are returned."""

    async def run() -> list[Answer | CallError]:
        backend = BACKENDS.get(spec.backend)(spec)
        try:
            found = await asyncio.gather(*(backend.answer(r) for r in requests), return_exceptions=True)
            return [one if isinstance(one, Answer | CallError) else _unexpected(one) for one in found]
        finally:
            await backend.close()

    return asyncio.run(run())


def _unexpected(error: BaseException) -> CallError:
    raise AssertionError(f"a backend may only raise CallError, not {error!r}") from error


def failure(spec: ModelSpec, text: str) -> CallError:
    (found,) = ask(spec, Request(key="k", text=text))
    assert isinstance(found, CallError)
    assert "\n" not in found.reason
    return found


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    return write_matrix(tmp_path / "matrix", models=6, tests=2, prompts=200)


@pytest.fixture
def openai(endpoint: Endpoint) -> ModelSpec:
    return ModelSpec(name="m", base_url=endpoint.url, model="served-name", max_tokens=7, price={"free": True})


# --- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS.names())
class TestContract:
    """Over every registered backend: one that works answers many prompts at once."""

    @pytest.fixture
    def spec(
        self, name: str, endpoint: Endpoint, matrix: Path, tmp_path: Path, request: pytest.FixtureRequest
    ) -> Iterator[ModelSpec]:
        if name == "transformers":
            weights = request.getfixturevalue("tiny_model")
            yield ModelSpec(name="m", backend=name, model=str(weights), max_tokens=5, device="cpu")
            return
        (tmp_path / "echo.py").write_text(ECHO, encoding="utf-8")
        known: dict[str, dict[str, Any]] = {
            "command": {"command": [sys.executable, "-S", str(tmp_path / "echo.py")]},
            "openai": {"base_url": endpoint.url},
            "replay": {"matrix": str(matrix), "row": "m5"},
        }
        yield ModelSpec(name="m", backend=name, **known[name])
        end_programs()

    def test_answers_many_prompts_at_once(self, spec: ModelSpec) -> None:
        requests = [Request(key=f"p{j}", text=f"say {j}") for j in range(20)]
        answers = ask(spec, *requests)
        assert all(isinstance(answer, Answer) for answer in answers)
        assert ask(spec, *requests) == answers

    def test_answers_count_their_tokens(self, spec: ModelSpec) -> None:
        (answer,) = ask(spec, Request(key="p1", text="say 4"))
        assert isinstance(answer, Answer)
        assert answer.input_tokens >= 0
        assert answer.output_tokens >= 0

    def test_an_impossible_description_is_refused_when_it_is_opened(self, name: str) -> None:
        with pytest.raises(AssayError) as caught:
            BACKENDS.get(name)(ModelSpec(name="m", backend=name))
        assert "m" in caught.value.message
        assert caught.value.hint


# --- openai ------------------------------------------------------------------------------------------------


def test_sends_model_prompt_and_parameters(openai: ModelSpec, endpoint: Endpoint) -> None:
    request = Request(key="k", text="say 4", parameters={"temperature": 0.5}, idempotency_key="assay-job-9")
    (answer,) = ask(openai, request)
    assert answer == Answer("4", "stop", 10, 2)
    (body,) = endpoint.asked
    assert body["model"] == "served-name"
    assert body["messages"] == [{"role": "user", "content": "say 4"}]
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)
    assert endpoint.headers[0]["Idempotency-Key"] == "assay-job-9"


@pytest.mark.parametrize(
    ("prompt", "reason", "retry"),
    [
        ("busy", "status 429", True),
        ("broken", "status 500", True),
        ("denied", "status 401", False),
        ("missing", "status 404", False),
        ("spent", "quota is used up", False),
        ("garbage", "cannot be read", True),
        ("page", "cannot be read", True),
        ("shapeless", "without a message", True),
        ("null", "lacks choices", True),
    ],
)
def test_what_is_no_answer_says_why_and_whether_to_retry(
    openai: ModelSpec, endpoint: Endpoint, prompt: str, reason: str, retry: bool
) -> None:
    found = failure(openai, prompt)
    assert reason in found.reason
    assert found.retry is retry
    assert "secret" not in found.reason
    assert len(endpoint.asked) == 1  # the client itself does not retry, every try is a job's


@pytest.mark.parametrize(
    ("prompt", "wait"),
    [
        ("busy", 0.25),
        ("busy ms", 0.125),
        ("busy limit", 61.5),
        ("busy until", None),  # a date that is over
        ("busy nan", None),
        ("busy inf", None),
        ("busy past", None),
    ],
)
def test_waits_as_long_as_the_endpoint_asks_if_that_makes_sense(
    openai: ModelSpec, prompt: str, wait: float | None
) -> None:
    assert failure(openai, prompt).retry_after == wait


@pytest.mark.parametrize(
    ("prompt", "text", "finish"),
    [
        ("refuse", "", "content_filter"),
        ("silent", "", "stop"),
        ("nothing", "", "stop"),
        ("cut", "The answer is", "length"),
    ],
)
def test_refused_empty_and_cut_answers_are_answers_that_cost(
    openai: ModelSpec, prompt: str, text: str, finish: str
) -> None:
    (answer,) = ask(openai, Request(key="k", text=prompt))
    assert answer == Answer(text, finish, 10, 2)


def test_an_endpoint_without_usage_figures_is_still_heard(openai: ModelSpec) -> None:
    (answer,) = ask(openai, Request(key="k", text="free of usage"))
    assert answer == Answer("4", "stop", 0, 0, usage_known=False)


def test_too_slow_is_retried(openai: ModelSpec) -> None:
    found = failure(openai.model_copy(update={"timeout_s": 0.1}), "slow one")
    assert found.retry
    assert "in time" in found.reason


def test_refused_connection_is_retried() -> None:
    with socket.socket() as probe:  # bound but not listening: whoever connects is refused
        probe.bind(("127.0.0.1", 0))
        spec = ModelSpec(name="m", base_url=f"http://127.0.0.1:{probe.getsockname()[1]}/v1")
        found = failure(spec, "say 4")
    assert found.retry
    assert "cannot be reached" in found.reason


def test_the_key_comes_from_the_environment_alone(
    openai: ModelSpec, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = openai.model_copy(update={"api_key_env": "ASSAY_TEST_KEY"})
    with pytest.raises(UsageError, match="ASSAY_TEST_KEY of model 'm' is not set"):
        ask(spec, Request(key="k", text="say 4"))
    monkeypatch.setenv("ASSAY_TEST_KEY", "sk-hidden")
    ask(spec, Request(key="k", text="say 4"))
    assert endpoint.headers[0]["Authorization"] == "Bearer sk-hidden"


# --- replay ------------------------------------------------------------------------------------------------


def replay(matrix: Path, **more: object) -> ModelSpec:
    return ModelSpec(name="m5", backend="replay", matrix=str(matrix), **more)


def test_replays_the_scores_of_its_row(matrix: Path) -> None:
    import numpy as np

    row = np.load(matrix / "scores.npz")["scores"][5]
    answers = ask(replay(matrix), *(Request(key=f"p{j}", text="") for j in range(len(row))))
    assert [answer.score for answer in answers] == row.tolist()


def test_failures_come_at_their_rate_and_at_the_same_places(matrix: Path) -> None:
    spec = replay(matrix, failure_rate=0.3)
    requests = [Request(key=f"p{j}", text="", attempt=1) for j in range(200)]
    failed = [isinstance(answer, CallError) for answer in ask(spec, *requests)]
    assert 40 <= sum(failed) <= 80
    assert failed == [isinstance(answer, CallError) for answer in ask(spec, *requests)]
    second = [Request(key=f"p{j}", text="", attempt=2) for j in range(200)]
    assert failed != [isinstance(answer, CallError) for answer in ask(spec, *second)]
    assert all(answer.retry for answer in ask(spec, *requests) if isinstance(answer, CallError))


def test_a_missing_score_is_no_wrong_answer(tmp_path: Path) -> None:
    import numpy as np

    matrix = write_matrix(tmp_path / "holes", models=6, prompts=5)
    scores = np.load(matrix / "scores.npz")["scores"]
    scores[5, 2] = -1
    np.savez(matrix / "scores.npz", scores=scores)
    hole, stranger = ask(replay(matrix), Request(key="p2", text=""), Request(key="other", text=""))
    for found, key in ((hole, "p2"), (stranger, "other")):
        assert isinstance(found, CallError)
        assert not found.retry
        assert f"no score of 'm5' on '{key}'" in found.reason


def test_an_unknown_row_is_refused(matrix: Path) -> None:
    with pytest.raises(UsageError, match="no row 'nobody'"):
        ask(replay(matrix, row="nobody"))
