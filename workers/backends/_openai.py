"""Chat completions of any OpenAI-compatible endpoint."""

from __future__ import annotations

import math
import os
from typing import Any

import httpx
import openai

from assay.errors import UsageError
from assay.specs import ModelSpec
from workers.backends._base import Answer, CallError, Request

__all__ = ["OpenAIBackend"]

#: HTTP statuses after which the same call may succeed: timeout, conflict, too early, rate limit.
RETRIED = frozenset({408, 409, 425, 429})

#: An endpoint that asks for a longer wait is asked again after this.
LONGEST_WAIT_S = 3600.0


class OpenAIBackend:
    """Calls `{base_url}/chat/completions` for one model.

    The key is read from the environment variable that the model's description names. Retries are the job
    queue's business, so that every try is counted and can be seen: the client itself makes none.
    """

    def __init__(self, spec: ModelSpec) -> None:
        if not spec.base_url:
            raise UsageError(f"model '{spec.name}' has no base_url", "name the endpoint in its model file")
        self._model = spec.model or spec.name
        self._parameters = {"max_tokens": spec.max_tokens, "temperature": 0.0, **spec.parameters}
        # A kept-alive pool of httpx costs more than new local connections (measured: 60 against 205 calls/s).
        limits = httpx.Limits(max_connections=spec.max_in_flight, max_keepalive_connections=0)
        self._client = openai.AsyncOpenAI(
            base_url=spec.base_url,
            api_key=_key(spec),
            max_retries=0,
            http_client=httpx.AsyncClient(limits=limits, timeout=spec.timeout_s),
        )

    async def answer(self, request: Request) -> Answer:
        """See `Backend.answer`."""
        parameters: dict[str, Any] = {**self._parameters, **request.parameters}
        try:
            completion = await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": request.text}],
                extra_headers={"Idempotency-Key": request.idempotency_key},
                **parameters,
            )
            return _answer(completion)
        except openai.APITimeoutError as error:
            raise CallError("the endpoint did not answer in time", retry=True) from error
        except openai.APIConnectionError as error:
            raise CallError(f"the endpoint cannot be reached: {_cause(error)}", retry=True) from error
        except openai.APIStatusError as error:
            raise _status_error(error) from error
        except (openai.APIError, ValueError) as error:
            raise CallError(
                f"the endpoint's answer cannot be read: {type(error).__name__}", retry=True
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _key(spec: ModelSpec) -> str:
    if spec.api_key_env is None:
        return "none"  # local endpoints ask for no key, the client insists on one
    key = os.environ.get(spec.api_key_env)
    if not key:
        raise UsageError(
            f"environment variable {spec.api_key_env} of model '{spec.name}' is not set",
            "set it for the workers and start them again",
        )
    return key


def _answer(completion: Any) -> Answer:
    try:
        choice = completion.choices[0]
        usage = completion.usage
        return Answer(
            text=choice.message.content or "",
            finish_reason=choice.finish_reason or "stop",
            input_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
        )
    except (AttributeError, IndexError, TypeError) as error:
        raise CallError("the endpoint's answer lacks choices", retry=True) from error


def _status_error(error: openai.APIStatusError) -> CallError:
    status = error.status_code
    retry = status in RETRIED or status >= 500
    return CallError(
        f"the endpoint answered with status {status}", retry=retry, retry_after=_retry_after(error)
    )


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait; None where it gives a date or nonsense."""
    try:
        seconds = float(error.response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(seconds, LONGEST_WAIT_S) if math.isfinite(seconds) and seconds >= 0 else None


def _cause(error: Exception) -> str:
    return type(error.__cause__ or error).__name__
