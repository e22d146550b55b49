"""One call through the gate of its endpoint: waits for the shared limits, and says what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from assay.specs import ModelSpec
from assay.statuses import Status
from workers.backends import Answer, Backend, CallError, Request
from workers.limits import Closed, Gate, Limits, LocalStore, Permit, Result, endpoint_of
from workers.prices import probable_tokens

__all__ = ["Calls", "Deferred", "Try"]

#: A 429 is tried again in place so often; after that the job goes back to the queue, at no cost of attempts.
BUSY_TRIES = 3

RESULTS = {
    Status.RATE_LIMITED: Result.BUSY,
    Status.SERVER_ERROR: Result.FAILED,
    Status.TIMEOUT: Result.FAILED,
    Status.UNREACHABLE: Result.FAILED,
    Status.UNREADABLE: Result.FAILED,
    Status.REJECTED: Result.OK,  # whoever refuses a call is there
}


@dataclass(frozen=True)
class Try:
    """A try that brought no answer.

    Attributes:
        status: What kind of failure.
        reason: In one line.
        unsure: Whether it may have been billed all the same.
    """

    status: Status
    reason: str
    unsure: bool = False

    @classmethod
    def of(cls, error: CallError) -> Try:
        """The try that ended with this error."""
        return cls(error.status, error.reason, error.billed is None)


class Deferred(Exception):  # noqa: N818
    """The endpoint takes no calls now; the job goes back to the queue and loses no attempt by it.

    Args:
        reason: Why, in one line.
        wait_s: Seconds after which it is worth trying again.
    """

    def __init__(self, reason: str, wait_s: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_s = wait_s


@dataclass
class Calls:
    """The way of one process to all backends; to be used within one event loop.

    Attributes:
        gate: The shared limits of endpoints.
    """

    gate: Gate = field(default_factory=lambda: Gate(LocalStore()))
    _local: dict[str, asyncio.Semaphore] = field(default_factory=dict)

    async def ask(self, spec: ModelSpec, backend: Backend, request: Request, tries: list[Try]) -> Answer:
        """Make one call when its limits allow it.

        Args:
            spec: The model.
            backend: Its backend.
            request: The call.
            tries: Tries that ended with 429 are added here.

        Raises:
            CallError: No answer came.
            Deferred: The endpoint is paused for longer, or this worker is about to stop.
        """
        if spec.base_url is None:
            async with self._local.setdefault(spec.name, asyncio.Semaphore(spec.max_in_flight)):
                return await backend.answer(request)
        for _ in range(BUSY_TRIES):
            permit = await self._enter(spec, request)
            try:
                return await _answer(backend, request, permit)
            except CallError as error:
                if error.status != Status.RATE_LIMITED or not error.retry:
                    raise
                tries.append(Try.of(error))
        raise Deferred(tries[-1].reason, 0.0)

    async def _enter(self, spec: ModelSpec, request: Request) -> Permit:
        tokens = probable_tokens(spec, request) if spec.tokens_per_minute else 0
        try:
            return await self.gate.enter(endpoint_of(spec), Limits.of(spec), tokens=tokens)
        except Closed as closed:
            reason = (
                f"its endpoint is left alone for {closed.wait_s:.0f} s" if closed.wait_s else "given back"
            )
            raise Deferred(reason, closed.wait_s) from None


async def _answer(backend: Backend, request: Request, permit: Permit) -> Answer:
    result, wait_s, used = Result.SILENT, 0.0, None
    try:
        answer = await backend.answer(request)
        result, wait_s = Result.OK, answer.wait_s
        used = answer.input_tokens + answer.output_tokens if answer.usage_known else None
        return answer
    except CallError as error:
        result, wait_s = RESULTS.get(error.status, Result.SILENT), error.retry_after or 0.0
        raise
    finally:
        permit.leave(result, wait_s=wait_s, tokens=used)
