"""What every backend is: it answers one prompt at a time, many at once, or says exactly why it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from assay.specs import ModelSpec
from assay.statuses import Status

__all__ = ["Answer", "Backend", "BackendFactory", "CallError", "Request"]


@dataclass(frozen=True)
class Request:
    """One call to make.

    Attributes:
        key: The prompt's id in its dataset.
        text: The rendered prompt.
        parameters: Decoding parameters of the method.
        attempt: 1 on the first try of this job.
        idempotency_key: The same for every try of the same job; providers that know it bill a repeat once.
        choices: Where there are any, their log-likelihoods are wanted instead of an answer.
    """

    key: str
    text: str
    parameters: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    idempotency_key: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        text: The answer.
        finish_reason: "stop", "length" (cut off), "content_filter" (refused), as the endpoint named it.
        input_tokens: Tokens billed for the prompt.
        output_tokens: Tokens billed for the answer.
        score: Score that the backend knows already (replay only).
        usage_known: False where the endpoint stated no tokens, or impossible ones: charged at the worst case.
        wait_s: Seconds for which the endpoint wants to be left alone from now on (a limit is used up).
        choice_logprobs: Log-likelihood of each of the request's choices after the prompt, where it has any.
        gpu_ms: Milliseconds of a local GPU that it took.
        first_logprobs: Log-probabilities of the most probable tokens in place of the answer's first token, by
            token; None where the backend gives none or was not asked.
    """

    text: str
    finish_reason: str = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    score: float | None = None
    usage_known: bool = True
    wait_s: float = 0.0
    choice_logprobs: Sequence[float] | None = None
    gpu_ms: int = 0
    first_logprobs: Mapping[str, float] | None = None


class CallError(Exception):
    """A call brought no answer; never a wrong answer.

    Args:
        reason: What happened, in one line without secrets.
        retry: Whether trying again may help.
        retry_after: Seconds that the endpoint asked to wait, or None.
        status: What kind of failure it was.
        billed: False where the call cannot have been billed, None where nobody knows: it was sent, and its
            answer was lost.
        malformed_request: Whether the endpoint found fault with the request's form, so that one without its
            optional parameters may be taken.
    """

    def __init__(
        self,
        reason: str,
        *,
        retry: bool,
        retry_after: float | None = None,
        status: Status = Status.FAILED,
        billed: bool | None = False,
        malformed_request: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after
        self.status = status
        self.billed = billed
        self.malformed_request = malformed_request


class Backend(Protocol):
    """Answers prompts for one model; opened once per batch of jobs, in its event loop.

    What it costs: the tokens (and `gpu_ms`) of each answer, at the model's price. A backend whose calls cost
    no dollars by themselves says so by a class attribute `free = True`; its models need no price. One that
    uses a GPU of this machine says `gpu = True`: `timeout_s` of it are reserved for each call. How much may
    be in flight is the description's `max_in_flight`, shared by all workers.
    """

    async def answer(self, request: Request) -> Answer:
        """Answer one prompt.

        Raises:
            CallError: No answer came.
        """
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


class BackendFactory(Protocol):
    """Builds the backend of one model; raises AssayError where the description cannot work."""

    def __call__(self, spec: ModelSpec) -> Backend:
        """Build it; cheap, without a network call."""
        ...
