"""A program of the user's own: it reads prompts and writes answers, one JSON object a line."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import IO, Any

from assay.errors import UsageError
from assay.specs import ModelSpec
from assay.statuses import Status
from workers.backends._base import Answer, CallError, Request

__all__ = ["CommandBackend"]

#: How long a program that was told to end may take.
END_S = 2.0

log = logging.getLogger(__name__)


class CommandBackend:
    """Runs `command` once per worker process and keeps it running between batches of jobs.

    It is given `{"id", "key", "prompt", "parameters", "choices"?, "attempt"}` and gives back `{"id", "text",
    "finish_reason"?, "input_tokens"?, "output_tokens"?, "choice_logprobs"?}`, or `{"id", "error", "retry"?}`,
    in any order. What it writes to standard error appears in the worker's. Lines with an unknown id are
    ignored. A program that dies fails the calls that it held (they are tried again with a new one); so does
    one that gives no sign for `timeout_s`, which is ended.
    """

    def __init__(self, spec: ModelSpec) -> None:
        if not spec.command:
            raise UsageError(f"model '{spec.name}' names no program", 'set command = ["PROGRAM", "ARGUMENT"]')
        self._command = tuple(spec.command)
        self._timeout_s = spec.timeout_s
        self._parameters = {"max_tokens": spec.max_tokens, "temperature": 0.0, **spec.parameters}

    async def answer(self, request: Request) -> Answer:
        """See `Backend.answer`."""
        program = _programs.get(self._command)
        if program is None or not program.alive:
            program = await asyncio.to_thread(_running, self._command)
        future = program.ask(_question(request, {**self._parameters, **request.parameters}))
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError:
            program.end_if_silent(self._timeout_s)
            raise CallError(
                "the program did not answer in time", retry=True, status=Status.TIMEOUT, billed=None
            ) from None
        return _answer(found, request.choices)

    async def close(self) -> None:
        """Nothing to give back: the program stays for the next batch of jobs."""


def _question(request: Request, parameters: dict[str, Any]) -> dict[str, Any]:
    question: dict[str, Any] = {
        "key": request.key,
        "prompt": request.text,
        "parameters": parameters,
        "attempt": request.attempt,
    }
    return {**question, "choices": list(request.choices)} if request.choices else question


def _answer(found: dict[str, Any], choices: Sequence[str]) -> Answer:
    if "error" in found:
        reason = " ".join(str(found["error"]).split())[:300]
        raise CallError(f"the program says: {reason}", retry=bool(found.get("retry", False)))
    logprobs = _numbers(found.get("choice_logprobs"))
    text = found.get("text", _likeliest(choices, logprobs))
    counts = [found.get("input_tokens", 0), found.get("output_tokens", 0)]
    if not isinstance(text, str) or any(not isinstance(n, int) or n < 0 for n in counts):
        raise CallError(
            "the program's answer cannot be read: text must be a string, counts whole numbers",
            retry=False,
            status=Status.UNREADABLE,
        )
    return Answer(
        text=text,
        finish_reason=str(found.get("finish_reason", "stop")),
        input_tokens=counts[0],
        output_tokens=counts[1],
        usage_known="input_tokens" in found and "output_tokens" in found,
        choice_logprobs=logprobs,
    )


def _likeliest(choices: Sequence[str], logprobs: Sequence[float] | None) -> str | None:
    if not logprobs or len(logprobs) != len(choices):
        return None
    return choices[logprobs.index(max(logprobs))]


def _numbers(values: Any) -> tuple[float, ...] | None:
    try:
        return None if values is None else tuple(float(value) for value in values)
    except (TypeError, ValueError):
        return None  # the scorer says that they are missing


class _Program:
    """A running program and the calls that it holds."""

    def __init__(self, command: tuple[str, ...]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603  (the user's own program, without a shell)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
                errors="replace", env=_environment(),
            )  # fmt: skip
        except OSError as error:
            raise CallError(
                f"the program '{command[0]}' cannot be started: {type(error).__name__}", retry=False
            ) from error
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._held: dict[int, Future[dict[str, Any]]] = {}
        self._heard = time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: dict[str, Any]) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        number = next(self._ids)
        self._held[number] = future
        try:
            with self._lock:
                assert self._process.stdin is not None
                if len(self._held) == 1:
                    self._heard = time.monotonic()  # it was idle: its silence begins now
                self._process.stdin.write(json.dumps({"id": number, **question}) + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError):
            self._give_up()
        return future

    def _read(self, lines: IO[str] | None) -> None:
        """Hand out answers until the program ends; then fail what it still held."""
        with contextlib.suppress(OSError, ValueError):
            for line in lines or ():
                self._heard = time.monotonic()
                self._take(line)
        self._process.wait()
        self._give_up()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _take(self, line: str) -> None:
        try:
            found = json.loads(line)
            future = self._held.pop(found["id"])
        except (ValueError, TypeError, KeyError):
            log.warning("a line of the program was ignored: no JSON object with the id of a prompt in work")
            return
        if not future.cancelled():
            future.set_result(found)

    def _give_up(self) -> None:
        reason = f"the program ended with status {self._process.poll()}"
        while self._held:
            with contextlib.suppress(KeyError, RuntimeError):
                _, future = self._held.popitem()
                if not future.done():
                    future.set_exception(
                        CallError(reason, retry=True, status=Status.UNREACHABLE, billed=None)
                    )

    def end_if_silent(self, timeout_s: float) -> None:
        """End the program if it has given no sign for so long: its other calls need not wait too."""
        if time.monotonic() - self._heard >= timeout_s:
            self.end()

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._reader.join(END_S)


def _environment() -> dict[str, str]:
    """Everything but what belongs to Assay itself (the database's address may hold a password)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")}


_programs: dict[tuple[str, ...], _Program] = {}
_starting = threading.Lock()


def _running(command: tuple[str, ...]) -> _Program:
    """This process's program, started where there is none or the last one has ended."""
    with _starting:
        program = _programs.get(command)
        if program is None or not program.alive:
            program = _programs[command] = _Program(command)
        return program


def end_programs() -> None:
    """End every program of this process."""
    while _programs:
        _programs.popitem()[1].end()


atexit.register(end_programs)
