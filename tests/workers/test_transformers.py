"""Local weights in the worker's process: a tiny random model, greedy, batched, and by likelihood."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from assay.specs import ModelSpec
from tests.workers.test_backends import ask, failure
from tests.workers.tiny import some_prompts, write_tiny_model
from workers.backends import Answer, Request
from workers.prices import price_of

PROMPTS = some_prompts(6)


@pytest.fixture
def spec(tiny_model: Path) -> ModelSpec:
    return ModelSpec(name="t", backend="transformers", model=str(tiny_model), max_tokens=8, device="cpu")


def texts(spec: ModelSpec, prompts: list[str], **parameters: object) -> list[str]:
    found = ask(spec, *(Request(key=p, text=p, parameters=parameters) for p in prompts))
    assert all(isinstance(one, Answer) for one in found), found
    return [one.text for one in found if isinstance(one, Answer)]


def test_a_batch_answers_as_one_at_a_time_does(spec: ModelSpec) -> None:
    """Greedy answers do not depend on what else is in the batch."""
    together = texts(spec.model_copy(update={"batch_size": 4}), PROMPTS)
    assert together == [texts(spec, [prompt])[0] for prompt in PROMPTS]
    assert len(set(together)) > 3


def test_answers_end_at_max_tokens_or_at_the_end_token(spec: ModelSpec) -> None:
    found = ask(spec, *(Request(key=p, text=p) for p in PROMPTS))
    for one in found:
        assert isinstance(one, Answer)
        assert one.finish_reason in ("stop", "length")
        assert (one.finish_reason == "length") <= (one.output_tokens == 8)
        assert one.input_tokens > 3
        assert one.gpu_ms == 0  # on a CPU


def test_sampling_follows_its_seed(spec: ModelSpec) -> None:
    hot = {"temperature": 2.0, "top_p": 0.95}
    first = texts(spec, PROMPTS[:2], **hot, seed=1)
    assert texts(spec, PROMPTS[:2], **hot, seed=1) == first
    assert texts(spec, PROMPTS[:2], **hot, seed=2) != first


def test_choices_get_their_log_likelihoods(spec: ModelSpec) -> None:
    choices = (" yes", " no", "maybe so", "")
    (found,) = ask(spec, Request(key="p", text="yes or no", choices=choices))
    assert isinstance(found, Answer)
    assert found.choice_logprobs is not None
    assert found.choice_logprobs[3] == 0.0  # nothing is certain to follow
    assert all(logprob < 0 for logprob in found.choice_logprobs[:3])
    likeliest = max(range(4), key=lambda i: found.choice_logprobs[i])  # type: ignore[index]
    assert found.text == choices[likeliest]


def test_likelihoods_are_those_of_the_model_itself(spec: ModelSpec, tiny_model: Path) -> None:
    """All tokens that can follow, taken together, are certain."""
    from workers.backends._weights import Weights

    weights = Weights(str(tiny_model), "cpu", "auto")
    tokens = [weights._tokenizer.decode([i]) for i in range(len(weights._tokenizer))]
    single = [t for t in tokens if len(weights._tokenizer(t, add_special_tokens=False)["input_ids"]) == 1]
    logprobs, _, _ = weights.likelihoods("yes or no", sorted(set(single)))
    assert 0.5 < sum(math.exp(value) for value in logprobs) < 1.0 + 1e-4


def test_another_model_takes_the_place_of_the_first(spec: ModelSpec, tmp_path: Path) -> None:
    from workers.backends._weights import resident

    other = spec.model_copy(update={"model": str(write_tiny_model(tmp_path / "other", seed=1))})
    assert texts(spec, PROMPTS[:1]) != texts(other, PROMPTS[:1])
    assert resident._key == (other.model, "cpu", "auto")
    assert texts(spec, PROMPTS[:1]) != texts(other, PROMPTS[:1])


def test_weights_that_are_not_there_say_what_to_give(spec: ModelSpec, tmp_path: Path) -> None:
    found = failure(spec.model_copy(update={"model": str(tmp_path / "nothing")}), "x")
    assert found.retry is False
    assert "cannot be loaded" in found.reason


def test_local_weights_cost_no_dollars(spec: ModelSpec) -> None:
    assert price_of(spec).free
