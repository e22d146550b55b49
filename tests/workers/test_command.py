"""The backend `command` against programs that die, hang, babble and lie."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.specs import ModelSpec
from assay.statuses import Status
from tests.workers.test_backends import ask
from workers.backends import Answer, CallError, Request
from workers.backends._command import end_programs

#: A program whose prompts say how it shall behave.
PROGRAM = """
import json, os, sys, time
def say(**found):
    print(json.dumps(found), flush=True)
held = []
for line in sys.stdin:
    asked = json.loads(line)
    text, number = asked["prompt"], asked["id"]
    if text == "die": os._exit(3)
    if text == "die once" and asked["attempt"] == 1: os._exit(3)
    if text == "hang": time.sleep(60)
    if text == "wait": held.append(number); continue
    if text == "go": [say(id=n, text="late") for n in reversed(held)]; held.clear()
    if text == "babble":
        print("Loading weights... 100%", flush=True)
        print("[1, 2", flush=True)
        print("[]", flush=True)
        say(id=number + 1000, text="not yours"); say(id="x", text="nor this"); say(text="no id")
    if text == "sorry": say(id=number, error="no\\nsuch thing"); continue
    if text == "busy": say(id=number, error="busy", retry=True); continue
    if text == "number": say(id=number, text=4); continue
    if text == "negative": say(id=number, text="x", input_tokens=-1); continue
    if text == "environment": say(id=number, text=str([k for k in os.environ if "ASSAY" in k])); continue
    if text == "pid": say(id=number, text=str(os.getpid())); continue
    if asked.get("choices"): say(id=number, choice_logprobs=[-1.0] * len(asked["choices"])); continue
    say(id=number, text=text.removeprefix("say "), input_tokens=3, output_tokens=1,
        finish_reason="length" if text == "long" else "stop")
"""


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[ModelSpec]:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-S", str(tmp_path / "program.py")]
    yield ModelSpec(name="m", backend="command", command=command, price={"free": True}, timeout_s=20)
    end_programs()


def asked(spec: ModelSpec, *texts: str, attempt: int = 1) -> list[Answer | CallError]:
    return ask(spec, *(Request(key=f"p{i}", text=t, attempt=attempt) for i, t in enumerate(texts)))


def failed(spec: ModelSpec, text: str) -> CallError:
    (found,) = asked(spec, text)
    assert isinstance(found, CallError)
    assert "\n" not in found.reason
    return found


def test_answers_with_usage_in_any_order(spec: ModelSpec) -> None:
    asked(spec, "pid")  # it runs: what follows reaches it in this order
    found = asked(spec, "say 4", "wait", "wait", "go", "long")
    assert [one.text for one in found] == ["4", "late", "late", "go", "long"]
    assert (found[0].input_tokens, found[0].output_tokens, found[0].usage_known) == (3, 1, True)
    assert found[4].finish_reason == "length"


def test_the_program_is_kept_between_batches(spec: ModelSpec) -> None:
    assert asked(spec, "pid") == asked(spec, "pid")


def test_a_program_that_dies_fails_what_it_held_and_is_started_again(spec: ModelSpec) -> None:
    (before,) = asked(spec, "pid")
    found = asked(spec, "wait", "die")
    assert all(isinstance(one, CallError) and one.retry for one in found)
    assert {one.reason for one in found} == {"the program ended with status 3"}
    (after,) = asked(spec, "pid")
    assert before != after
    assert isinstance(asked(spec, "die once", attempt=2)[0], Answer)


def test_a_program_that_hangs_is_ended(spec: ModelSpec) -> None:
    quick = spec.model_copy(update={"timeout_s": 0.5})
    found = failed(quick, "hang")
    assert (found.retry, found.status, found.reason) == (
        True,
        Status.TIMEOUT,
        "the program did not answer in time",
    )
    assert asked(spec, "say hello")[0].text == "hello"


def test_lines_that_answer_nothing_are_ignored(spec: ModelSpec) -> None:
    assert [one.text for one in asked(spec, "babble", "say 1")] == ["babble", "1"]


def test_what_the_program_says_of_itself_is_passed_on(spec: ModelSpec) -> None:
    assert (failed(spec, "sorry").reason, failed(spec, "sorry").retry) == (
        "the program says: no such thing",
        False,
    )
    assert failed(spec, "busy").retry is True
    for text in ("number", "negative"):
        assert failed(spec, text).status == Status.UNREADABLE


def test_a_program_that_is_not_there_is_not_tried_again(spec: ModelSpec) -> None:
    missing = spec.model_copy(update={"command": ["/no/such/program"]})
    found = failed(missing, "say 1")
    assert found.retry is False
    assert "cannot be started" in found.reason


def test_the_programs_surroundings_hold_nothing_of_assays(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_DATABASE_URL", "postgresql://u:password@h/d")
    assert asked(spec, "environment")[0].text == "[]"


def test_choices_get_their_log_likelihoods(spec: ModelSpec) -> None:
    (found,) = ask(spec, Request(key="p", text="which", choices=("a", "b")))
    assert found.choice_logprobs == (-1.0, -1.0)
