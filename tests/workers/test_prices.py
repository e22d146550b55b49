"""What a call costs: told, looked up, or refused; never silently nothing."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from assay.errors import UnknownPriceError
from assay.specs import ModelSpec, Price
from workers.prices import expected_usd, price_of, worst_case_charge


def test_the_models_own_description_counts_first() -> None:
    spec = ModelSpec(name="gpt-4o-mini", price={"input_per_million": 7, "per_call": 0.001})
    assert price_of(spec) == Price(input_per_million=7, per_call=0.001)


def test_a_known_model_is_looked_up() -> None:
    price = price_of(ModelSpec(name="mini", model="gpt-4o-mini"))
    assert 0 < price.input_per_million < price.output_per_million


def test_an_unknown_price_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(UnknownPriceError, match="'somebodys-model' is not known") as caught:
        price_of(ModelSpec(name="somebodys-model"))
    assert "free = true" in caught.value.hint


def test_free_is_said_explicitly_or_by_the_replay_backend() -> None:
    assert price_of(ModelSpec(name="x", price={"free": True})).micro_dollars(1000, 1000) == 0
    assert price_of(ModelSpec(name="x", backend="replay")).free
    for nothing in ({}, {"per_call": 0.0}, {"free": True, "per_call": 1.0}, {"per_call": float("inf")}):
        with pytest.raises(ValidationError):
            Price(**nothing)


def test_calls_cost_whole_micro_dollars_rounded_up() -> None:
    assert Price(input_per_million=0.1).micro_dollars(1, 0) == 1
    assert Price(input_per_million=2, output_per_million=8).micro_dollars(10, 3) == 44
    assert Price(per_call=0.01).micro_dollars(0, 0) == 10_000


def test_the_worst_case_is_never_less_than_what_any_answer_can_cost() -> None:
    spec = ModelSpec(name="x", max_tokens=50)
    price, text = Price(input_per_million=2, output_per_million=8), "Wie heißt du? 你叫什么名字"
    worst = worst_case_charge(spec, price, text)
    assert worst.usd >= price.micro_dollars(len(text.encode()), 50)
    assert (worst.calls, worst.tokens >= len(text.encode()) + 50) == (1, True)
    capped = spec.model_copy(update={"parameters": {"max_tokens": 5}})
    assert worst_case_charge(capped, price, text).usd < worst.usd


def test_longer_prompts_are_expected_to_cost_more() -> None:
    usd = expected_usd(Price(input_per_million=2), np.array([40, 4000]), np.array([5.0, 5.0]))
    assert 0 < usd[0] < usd[1]
