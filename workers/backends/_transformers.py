"""Local weights in the worker's own process, on CPU or CUDA, in batches."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from assay.errors import AssayError, UsageError
from assay.specs import ModelSpec
from assay.statuses import Status
from workers.backends._base import Answer, CallError, Request

__all__ = ["TransformersBackend"]

Waiting = tuple[Request, asyncio.Future[Answer]]

log = logging.getLogger(__name__)


class TransformersBackend:
    """Answers with weights that this process loads; one model at a time is resident in a worker.

    Requests that are in flight together are put into batches of `batch_size` (those of the same decoding
    parameters). A batch runs in a thread, so that leases are renewed meanwhile. Models of several gigabytes
    belong on a worker of their own: `assay worker --queues inference --threads 1`.
    """

    free = True  # in dollars; what it costs is the time of a GPU
    gpu = True

    def __init__(self, spec: ModelSpec) -> None:
        if not spec.model:
            raise UsageError(
                f"model '{spec.name}' names no weights", 'set model = "FOLDER" in its model file'
            )
        self._key = (spec.model, spec.device, spec.dtype)
        self._size = spec.batch_size
        self._parameters = {"max_tokens": spec.max_tokens, "temperature": 0.0, **spec.parameters}
        self._waiting: list[Waiting] = []
        self._runner: asyncio.Task[None] | None = None

    async def answer(self, request: Request) -> Answer:
        """See `Backend.answer`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Nothing to give back: the weights stay for the next batch of jobs."""
        if self._runner is not None:
            await self._runner

    async def _run(self) -> None:
        await asyncio.sleep(0)  # requests that are made at the same time join the first batch
        while self._waiting:
            batch = self._next()
            requests = [request for request, _ in batch]
            try:
                answers: Sequence[Answer] = await asyncio.to_thread(self._answers, requests)
            except AssayError as error:  # weights that cannot be loaded are the user's to mend
                _fail(batch, str(error), retry=False)
            except Exception as error:  # whatever it is, nobody may wait for ever
                log.exception("a batch of %d prompts failed", len(batch))
                _fail(batch, f"the model failed: {type(error).__name__}", retry=_may_pass(error))
            else:
                _hand_out(batch, answers)

    def _next(self) -> list[Waiting]:
        """The first that waits, and those like it."""
        kind = _kind(self._waiting[0][0])
        size = 1 if self._waiting[0][0].choices else self._size
        batch = [one for one in self._waiting if _kind(one[0]) == kind][:size]
        taken = {id(one) for one in batch}
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        return batch

    def _answers(self, requests: Sequence[Request]) -> list[Answer]:
        try:
            from workers.backends._weights import resident
        except ImportError as error:
            raise UsageError(
                f"the backend 'transformers' needs {error.name}", "pip install 'assay[local]'"
            ) from None
        with resident as held:
            weights = held.use(self._key)
            if requests[0].choices:
                return [
                    _chosen(request, *weights.likelihoods(request.text, request.choices))
                    for request in requests
                ]
            parameters = {**self._parameters, **requests[0].parameters}
            found = weights.generate([request.text for request in requests], parameters)
        return [
            Answer(
                text=one.text,
                finish_reason="stop" if one.finished else "length",
                input_tokens=one.input_tokens,
                output_tokens=one.output_tokens,
                gpu_ms=one.gpu_ms,
            )
            for one in found
        ]


def _chosen(request: Request, logprobs: list[float], tokens: int, gpu_ms: int) -> Answer:
    best = logprobs.index(max(logprobs))
    return Answer(
        text=request.choices[best],
        input_tokens=tokens,
        choice_logprobs=tuple(logprobs),
        gpu_ms=gpu_ms,
    )


def _kind(request: Request) -> str:
    """What must be equal within a batch."""
    wanted: dict[str, Any] = {**request.parameters, "choices": bool(request.choices)}
    return json.dumps(wanted, sort_keys=True, default=str)


def _hand_out(batch: Sequence[Waiting], answers: Sequence[Answer]) -> None:
    for (_, future), answer in zip(batch, answers, strict=True):
        if not future.done():
            future.set_result(answer)


def _fail(batch: Sequence[Waiting], reason: str, *, retry: bool) -> None:
    for _, future in batch:
        if not future.done():
            status = Status.SERVER_ERROR if retry else Status.FAILED
            future.set_exception(CallError(reason, retry=retry, status=status))


def _may_pass(error: Exception) -> bool:
    """Whether trying again may help: memory that others take now may be free then."""
    return type(error).__name__ == "OutOfMemoryError"
