"""What a call costs: from the model's own description, else from a maintained price table, else refused."""

from __future__ import annotations

import numpy as np
from genai_prices import Usage, calc_price
from numpy.typing import NDArray

from assay.errors import UnknownPriceError
from assay.specs import ModelSpec, Price
from storage.ledger import Charge

__all__ = ["CHARACTERS_PER_TOKEN", "expected_usd", "price_of", "worst_case_charge"]

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
    if spec.backend == "replay":
        return FREE
    return _table_price(spec)


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


def worst_case_charge(spec: ModelSpec, price: Price, text: str) -> Charge:
    """What a call can cost at most: a byte-level tokenizer makes at most one token of each byte."""
    tokens_in = len(text.encode()) + FRAME_TOKENS
    tokens_out = int(spec.parameters.get("max_tokens", spec.max_tokens))
    return Charge(usd=price.micro_dollars(tokens_in, tokens_out), calls=1, tokens=tokens_in + tokens_out)


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
