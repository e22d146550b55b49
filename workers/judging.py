"""A judge's job: from stored answers to a verdict; every reply is kept, so that none is paid for twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from assay.errors import BadInputError
from assay.specs import ModelSpec, Price
from storage.ledger import Charge
from workers.backends import Answer, CallError, Request
from workers.judges import Call, Question, Usage, Verdict, is_judge, make_judge
from workers.prices import Bill, bill_of
from workers.scorers import Unscorable, usable_text
from workers.work import Work

__all__ = [
    "Asker",
    "check_judgeable",
    "explained",
    "question_of",
    "reference_of",
    "verdict_details",
    "with_parameters",
]

#: Parameters that an endpoint may not know; one that refuses them is asked without.
OPTIONAL = frozenset({"response_format", "logprobs", "top_logprobs"})


class Asker:
    """Puts a judge's calls to its model; replies of an earlier try of the same job are taken as they are.

    Args:
        item: The judge's job.
        send: Makes one call to its model.
    """

    def __init__(self, item: Work, send: Callable[[Request], Awaitable[Answer]]) -> None:
        self._item = item
        self._send = send
        self._asked: dict[str, Call] = {}
        self._replies: dict[str, Answer] = {
            key: Answer(**reply) for key, reply in item.details.get("calls", {}).items()
        }

    async def __call__(self, call: Call) -> Answer:
        """See `Ask`."""
        key = _digest(call)
        self._asked[key] = call
        if key not in self._replies:
            self._replies[key] = await self._ask(call, key)
        return self._replies[key]

    async def _ask(self, call: Call, key: str) -> Answer:
        try:
            return await self._send(self._request(call.text, dict(call.parameters), key))
        except CallError as error:
            if not error.malformed_request or not OPTIONAL & set(call.parameters):
                raise
        plain = {name: value for name, value in call.parameters.items() if name not in OPTIONAL}
        return await self._send(self._request(call.text, plain, key + "-plain"))

    def _request(self, text: str, parameters: dict[str, Any], key: str) -> Request:
        return Request(
            key=self._item.prompt_key,
            text=text,
            parameters=parameters,
            attempt=self._item.attempt,
            idempotency_key=f"assay-job-{self._item.job_id}-{key}",
        )

    @property
    def usage(self) -> Usage:
        """What the replies took, those of earlier tries included."""
        replies = self._replies.values()
        return Usage(
            calls=len(replies),
            input_tokens=sum(reply.input_tokens for reply in replies),
            output_tokens=sum(reply.output_tokens for reply in replies),
        )

    def bill(self, price: Price) -> Bill | None:
        """What the replies cost, each by what can be believed of its usage; None where there is none."""
        spec = self._item.spec
        bills = [
            bill_of(with_parameters(spec, call.parameters), price, call.text, self._replies[key])
            for key, call in self._asked.items()
            if key in self._replies
        ]
        if not bills:
            return None
        charge = sum((bill.charge for bill in bills if bill.charge is not None), start=Charge(calls=0))
        usage = asdict(self.usage)
        return Bill(charge, {**bills[-1].details, **usage, "usd": charge.usd})

    @property
    def details(self) -> dict[str, Any]:
        """The replies as the job keeps them."""
        return {"calls": {key: _plain(reply) for key, reply in self._replies.items()}}


def with_parameters(spec: ModelSpec, parameters: Mapping[str, Any]) -> ModelSpec:
    """The model with a call's parameters laid over its own, as its cost was reserved."""
    return spec.model_copy(update={"parameters": {**spec.parameters, **parameters}})


def check_judgeable(item: Work) -> None:
    """Refuse to buy an answer that its judge could not judge.

    Raises:
        Unscorable: The prompt lacks what the judge compares with.
    """
    if is_judge(item.scorer) and make_judge(item.scorer, item.scorer_params).compares:
        _standard(item.fields)


def question_of(item: Work) -> Question:
    """What a judge's job asks.

    Raises:
        BadInputError: An answer to be judged is not there.
        Unscorable: It cannot be judged.
    """
    compares = make_judge(item.scorer, item.scorer_params).compares
    if item.other_method_id and not compares:
        raise BadInputError(f"the judge '{item.scorer}' does not compare two answers", "use judge-pairwise")
    answer, other = _text_of(item.known_answer), None
    if item.other_method_id:
        other = _text_of(item.other_answer)
    elif compares:
        other = _standard(item.fields)
    return Question(item.prompt_key, item.text, answer, other, reference_of(item.fields, compares))


def reference_of(fields: dict[str, Any], compares: bool) -> str | None:
    """A good answer, as the prompt gives it: its reference, else its target; in a comparison its target."""
    reference = fields.get("target") if compares else fields.get("reference", fields.get("target"))
    if isinstance(reference, list):
        return " / ".join(map(str, reference)) or None
    return None if reference is None else str(reference)


def _standard(fields: dict[str, Any]) -> str:
    standard = fields.get("reference")
    if standard is None:
        raise Unscorable("the prompt has no field 'reference' that answers could be compared with")
    return str(standard)


def _text_of(answer: Answer | None) -> str:
    if answer is None:
        raise BadInputError("the answer to be judged is not there", "buy it first")
    return usable_text(answer)


def explained(verdict: Verdict) -> str:
    """Why a judgement brought no value, in one line that says what kind it is."""
    return f"{verdict.status} verdict: {verdict.reason}"


def verdict_details(verdict: Verdict) -> dict[str, Any]:
    """A verdict as it is stored with its job and preference."""
    found = {
        "status": verdict.status.value,
        "value": verdict.value,
        "votes": list(verdict.votes),
        "flipped": verdict.flipped,
        "reason": verdict.reason,
        "usage": asdict(verdict.usage),
    }
    return {key: value for key, value in found.items() if value not in (None, [], "")}


def _plain(reply: Answer) -> dict[str, Any]:
    kept = asdict(replace(reply, first_logprobs=None))
    if reply.first_logprobs is not None:
        kept["first_logprobs"] = dict(reply.first_logprobs)
    return {key: value for key, value in kept.items() if value is not None}


def _digest(call: Call) -> str:
    content = json.dumps([call.text, dict(call.parameters)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
