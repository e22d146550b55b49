"""Chat completions of any OpenAI-compatible endpoint.

Requests and answers have the shapes of the `openai` package; the calls themselves go over aiohttp, whose
price per call is a third of that package's own client (see `_http.py`).
"""

from __future__ import annotations

import os
from typing import Any

from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from assay.errors import UsageError
from assay.specs import ModelSpec
from assay.statuses import Status
from workers.backends._base import Answer, CallError, Request
from workers.backends._http import JsonEndpoint, Reply

__all__ = ["OpenAIBackend"]


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
        headers = {"Authorization": f"Bearer {_key(spec)}"}
        self._endpoint = JsonEndpoint(spec.base_url, headers, spec.timeout_s)

    async def answer(self, request: Request) -> Answer:
        """See `Backend.answer`."""
        if request.choices:
            raise CallError(
                "chat completions give no log-likelihoods of choices (the backend transformers does)",
                retry=False,
            )
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": request.text}]
        body: CompletionCreateParamsNonStreaming = {"model": self._model, "messages": messages}
        reply = await self._endpoint.post(
            "/chat/completions",
            {**body, **self._parameters, **request.parameters},
            {"Idempotency-Key": request.idempotency_key},
        )
        return _answer(reply)

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _key(spec: ModelSpec) -> str:
    if spec.api_key_env is None:
        return "none"  # local endpoints ask for no key, some insist on any
    key = os.environ.get(spec.api_key_env)
    if not key:
        raise UsageError(
            f"environment variable {spec.api_key_env} of model '{spec.name}' is not set",
            "set it for the workers and start them again",
        )
    return key


def _answer(reply: Reply) -> Answer:
    tokens = _usage(reply.get("usage"))
    choices = reply.get("choices")
    if not isinstance(choices, list):
        raise CallError(
            "the endpoint's answer lacks choices", retry=True, status=Status.UNREADABLE, billed=None
        )
    text, finish_reason = _first(choices)
    logprobs = choices[0].get("logprobs") if choices else None
    return Answer(
        text=text,
        finish_reason=finish_reason,
        input_tokens=tokens[0] if tokens else 0,
        output_tokens=tokens[1] if tokens else 0,
        usage_known=tokens is not None,
        wait_s=reply.wait_s,
        first_logprobs=_first_logprobs(logprobs),
    )


def _first(choices: list[Any]) -> tuple[str, str]:
    """Text and finish reason of the first choice; no choice at all is an empty answer, billed like any."""
    try:
        choice = choices[0] if choices else {"message": {}}
        content = choice["message"].get("content")
        if not content and choice["message"].get(
            "refusal"
        ):  # structured outputs refuse in a field of its own
            return "", "content_filter"
        return _text(content), str(choice.get("finish_reason") or "stop")
    except (AttributeError, KeyError, TypeError) as error:
        raise CallError(
            "the endpoint's answer cannot be read: a choice without a message",
            retry=True,
            status=Status.UNREADABLE,
            billed=None,
        ) from error


def _text(content: Any) -> str:
    """The answer's text; some endpoints send it in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return "" if content is None else str(content)


def _first_logprobs(logprobs: Any) -> dict[str, float] | None:
    """Alternatives of the first token that is not blank, where the endpoint gives log-probabilities."""
    try:
        for token in (logprobs or {}).get("content") or []:
            if token["token"].strip() and token.get("top_logprobs"):
                return {str(one["token"]): float(one["logprob"]) for one in token["top_logprobs"]}
    except (AttributeError, KeyError, TypeError, ValueError):  # an extra: the answer counts without it
        return None
    return None


def _usage(usage: Any) -> tuple[int, int] | None:
    """(prompt tokens, answer tokens) where the endpoint states both as what they can be; else None."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    stated = [count for count in counts if isinstance(count, int) and not isinstance(count, bool)]
    if len(stated) < 2 or min(stated) < 0 or not any(stated):
        return None
    return stated[0], stated[1]
