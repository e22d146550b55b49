"""What a call costs: from the model's own description, else from a maintained price table, else refused."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from genai_prices import Usage, calc_price
from numpy.typing import NDArray

from assay.errors import UnknownPriceError
from assay.specs import ModelSpec, Price
from storage.ledger import Charge
from workers.backends import BACKENDS, Answer, Request
from workers.limits import endpoint_of

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "Bill",
    "bill_of",
    "expected_usd",
    "price_of",
    "price_source",
    "probable_tokens",
    "worst_case_charge",
]

FREE = Price(free=True)

#: Tokens of a chat's frame around the prompt, generously.
FRAME_TOKENS = 64

#: Rule of thumb for English text, only for expectations, never for caps.
CHARACTERS_PER_TOKEN = 4


def price_of(spec: ModelSpec) -> Price:
    """The model's price.

    Raises:
        UnknownPriceError: Neither its description nor the price table knows it.
    """
    if spec.price is not None:
        return spec.price
    if _states(spec, "free"):
        return FREE
    return _table_price(spec)


def _states(spec: ModelSpec, what: str) -> bool:
    """What the model's backend says of all its calls: `free` or `gpu`."""
    return spec.backend in BACKENDS and bool(getattr(BACKENDS.get(spec.backend), what, False))


def _table_price(spec: ModelSpec) -> Price:
    million = 1_000_000
    try:
        both = calc_price(
            Usage(input_tokens=million, output_tokens=million), model_ref=spec.model or spec.name
        )
        return Price(input_per_million=float(both.input_price), output_per_million=float(both.output_price))
    except (LookupError, ValueError):
        raise UnknownPriceError(
            f"the price of model '{spec.name}' is not known",
            "set price = {input_per_million = ..., output_per_million = ...} or price = {free = true}"
            " in its model file",
        ) from None


def price_source(spec: ModelSpec) -> str:
    """Where the model's price comes from, as stored with each charge."""
    if spec.price is not None:
        return "model file"
    free = _states(spec, "free")
    return f"backend {spec.backend}" if free else f"genai-prices {version('genai-prices')}"


@dataclass(frozen=True)
class Bill:
    """What a call costs, and how that was worked out.

    Attributes:
        charge: For the ledger; None = what was reserved, since the bill cannot be known.
        details: Tokens, price and its source, as stored with the job.
    """

    charge: Charge | None
    details: dict[str, Any]


def bill_of(spec: ModelSpec, price: Price, text: str, answer: Answer) -> Bill:
    """The bill of an answer, by the tokens that the endpoint states.

    Stated tokens that are missing, or more than the call can have used at all, are no bill that could be
    believed: such a call is charged at its worst case, which is what was reserved for it.
    """
    worst = worst_case_charge(spec, price, text)
    usd = price.micro_dollars(answer.input_tokens, answer.output_tokens)
    tokens = answer.input_tokens + answer.output_tokens
    believed = answer.usage_known and tokens <= worst.tokens and usd <= worst.usd
    charge = Charge(usd=usd, calls=1, tokens=tokens, gpu_ms=answer.gpu_ms) if believed else worst
    details = {
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "usd": charge.usd,
        "price": price.model_dump(exclude_defaults=True),
        "price_from": price_source(spec),
    }
    return Bill(charge, details if believed else {**details, "usage": "not believable, worst case charged"})


def probable_tokens(spec: ModelSpec, request: Request) -> int:
    """Tokens that a call counts for in a limit of tokens, as endpoints do it: prompt and max_tokens."""
    most = int({**spec.parameters, **request.parameters}.get("max_tokens", spec.max_tokens))
    return len(request.text) // CHARACTERS_PER_TOKEN + FRAME_TOKENS // 4 + most


def worst_case_charge(spec: ModelSpec, price: Price, text: str) -> Charge:
    """What a call can cost at most: a byte-level tokenizer makes at most one token of each byte."""
    tokens_in = len(text.encode()) + FRAME_TOKENS
    tokens_out = int(spec.parameters.get("max_tokens", spec.max_tokens))
    return Charge(
        usd=price.micro_dollars(tokens_in, tokens_out),
        calls=1,
        tokens=tokens_in + tokens_out,
        gpu_ms=_longest_gpu_ms(spec),
        endpoint=endpoint_of(spec),
    )


def _longest_gpu_ms(spec: ModelSpec) -> int:
    on_gpu = _states(spec, "gpu") and not spec.device.startswith("cpu")
    return round(spec.timeout_s * 1000) if on_gpu else 0


def expected_usd(
    price: Price, lengths: NDArray[np.int64], output_tokens: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Micro-dollars that calls will probably cost.

    Args:
        price: The model's price.
        lengths: (N,) length of each prompt in characters.
        output_tokens: (N,) typical length of an answer in tokens.
    """
    tokens_in = lengths / CHARACTERS_PER_TOKEN + FRAME_TOKENS / 4
    usd: NDArray[np.float64] = (
        tokens_in * price.input_per_million + output_tokens * price.output_per_million + price.per_call * 1e6
    )
    return usd
