"""What every judge must keep, how each reads its replies, and what makes it one instrument."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError, BadInputError
from assay.specs import ModelSpec
from assay.statuses import Status
from workers.backends import Answer, CallError
from workers.judges import (
    JUDGES,
    TEMPLATES,
    Call,
    Question,
    Verdict,
    make_judge,
    pin,
    template_hash,
)

QUESTION = Question("p1", "What is {answer} in 2 + 2?", "It is 4.", "It is 5.", "4")
MODEL = ModelSpec(name="j", base_url="http://127.0.0.1:1/v1", model="judge-model", price={"free": True})

GOOD = {
    "judge-score": [Answer('{"reason": "right", "score": 10}')],
    "judge-pairwise": [Answer('{"better": "first"}'), Answer('{"better": "second"}')],
    "judge-weighted": [Answer("m"), Answer("M")],
}


class Script:
    """Replies by turns, and what was asked."""

    def __init__(self, replies: Sequence[Answer | CallError]) -> None:
        self.replies = list(replies)
        self.asked: list[Call] = []

    async def __call__(self, call: Call) -> Answer:
        self.asked.append(call)
        reply = self.replies.pop(0)
        if isinstance(reply, CallError):
            raise reply
        return reply


def judged(name: str, *replies: Answer, question: Question = QUESTION, **params: Any) -> Verdict:
    return asyncio.run(make_judge(name, params).judge(question, Script(replies)))


# --- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JUDGES.names())
class TestContract:
    def test_a_clear_verdict_has_a_value(self, name: str) -> None:
        found = judged(name, *GOOD[name])
        assert (found.ok, found.value) == (True, 1.0)

    @pytest.mark.parametrize(
        ("reply", "status"),
        [
            (Answer("I cannot", "content_filter"), Status.REFUSED),
            (Answer(" \n"), Status.EMPTY),
            (Answer("what a question"), Status.MALFORMED),
            (Answer('{"reason": "no verdict"}'), Status.MALFORMED),
        ],
    )
    def test_what_is_no_verdict_has_a_status_and_never_a_value(
        self, name: str, reply: Answer, status: Status
    ) -> None:
        found = judged(name, reply, reply)
        assert (found.status, found.value, found.preference) == (status, None, None)
        assert found.reason
        assert "\n" not in found.reason

    def test_a_failed_call_is_the_callers_business(self, name: str) -> None:
        with pytest.raises(CallError):
            asyncio.run(make_judge(name, {}).judge(QUESTION, Script([CallError("busy", retry=True)])))

    def test_what_is_reserved_covers_what_is_asked(self, name: str) -> None:
        judge = make_judge(name, {})
        unreadable = Script([Answer("\U0001f600" * 5000)] * 4)
        for script in (unreadable, Script(GOOD[name])):
            asyncio.run(judge.judge(QUESTION, script))
            longest = judge.longest(QUESTION)
            assert len(script.asked) <= len(longest)
            sizes = [len(call.text.encode()) for call in script.asked]
            assert all(size <= len(call.text.encode()) for size, call in zip(sizes, longest, strict=False))

    def test_texts_are_put_in_as_they_are(self, name: str) -> None:
        script = Script(GOOD[name])
        asyncio.run(make_judge(name, {}).judge(QUESTION, script))
        assert "What is {answer} in 2 + 2?" in script.asked[0].text
        assert "It is 4." in script.asked[0].text
        assert "<reference>\n4\n</reference>" in script.asked[0].text

    def test_unknown_and_wrong_parameters_are_refused(self, name: str) -> None:
        for params in ({"rubic": "x"}, {"template": "score-v9"}):
            with pytest.raises(BadInputError, match=name):
                make_judge(name, params)

    def test_model_template_and_parameters_are_the_identity(self, name: str) -> None:
        def pinned(model: ModelSpec = MODEL, **params: Any) -> str:
            return json.dumps(pin(name, params, model), sort_keys=True)

        base = pinned()
        text = TEMPLATES[json.loads(base)["template"]]
        others = [
            pinned(MODEL.model_copy(update={"model": "other"})),
            pinned(MODEL.model_copy(update={"parameters": {"temperature": 1}})),
            pinned(rubric="Is it funny?"),
            pinned(template=text + " "),
        ]
        assert len({base, *others}) == 5
        same = [
            pinned(MODEL.model_copy(update={"timeout_s": 5.0, "api_key_env": "KEY", "max_in_flight": 2})),
            json.dumps(pin(name, json.loads(base), MODEL), sort_keys=True),
        ]
        assert set(same) == {base}

    def test_a_template_that_changed_is_noticed(self, name: str) -> None:
        params = {**pin(name, {}, MODEL), "template_hash": "0" * 16}
        with pytest.raises(BadInputError, match="pinned"):
            make_judge(name, params)


def test_templates_never_change() -> None:
    """A text that is in use is part of scores' identity: write a new one under a new name instead."""
    assert {name: template_hash(name) for name in TEMPLATES} == {
        "score-v1": "fba068ff8f0a4cf0",
        "pairwise-v1": "2e21a7c354a7987d",
        "weighted-v1": "29afe7e41b96407c",
    }


# --- grades ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ('{"score": 1}', 0.0),
        ('{"score": 5.5, "reason": "so so"}', 0.5),
        ('```json\n{"reason": "fine", "score": 10}\n```', 1.0),
        ('Thinking {of braces} first. {"reason": "a {nested} one", "score": 10}', 1.0),
    ],
)
def test_grades_become_scores(reply: str, value: float) -> None:
    assert judged("judge-score", Answer(reply)).value == pytest.approx(value)


@pytest.mark.parametrize(
    "reply", ['{"score": "10"}', '{"score": true}', '{"score": 11}', '{"score": NaN}', '{"score": 1', "7"]
)
def test_a_reply_that_cannot_be_read_is_mended_once(reply: str) -> None:
    script = Script([Answer(reply), Answer('{"score": 10}')])
    found = asyncio.run(make_judge("judge-score", {}).judge(QUESTION, script))
    assert found.value == 1.0
    assert reply in script.asked[1].text
    assert judged("judge-score", Answer(reply), Answer(reply)).status is Status.MALFORMED
    assert judged("judge-score", Answer(reply), repairs=0).status is Status.MALFORMED


def test_a_cut_off_reply_is_not_mended() -> None:
    assert judged("judge-score", Answer('{"score": 10}', "length")).status is Status.TRUNCATED


@given(st.text())
def test_no_reply_breaks_the_reading(text: str) -> None:
    for name in JUDGES.names():
        found = judged(name, *[Answer(text)] * 2)
        assert found.ok == (found.value is not None)


# --- preferences -------------------------------------------------------------------------------------------


def better(*said: str) -> list[Answer]:
    return [Answer(json.dumps({"better": one})) for one in said]


@pytest.mark.parametrize(
    ("said", "ties", "value", "preference", "flipped"),
    [
        (("first", "second"), "conservative", 1.0, "A", False),
        (("second", "first"), "conservative", 0.0, "B", False),
        (("first", "first"), "conservative", 0.5, "tie", True),
        (("second", "second"), "average", 0.5, "tie", True),
        (("tie", "tie"), "conservative", 0.5, "tie", False),
        (("first", "tie"), "conservative", 0.5, "tie", False),
        (("first", "tie"), "average", 0.75, "A", False),
    ],
)
def test_two_orders_make_one_preference(
    said: tuple[str, str], ties: str, value: float, preference: str, flipped: bool
) -> None:
    found = judged("judge-pairwise", *better(*said), ties=ties)
    assert (found.value, found.preference, found.flipped) == (value, preference, flipped)


def test_the_answers_change_places() -> None:
    script = Script(better("first", "second"))
    asyncio.run(make_judge("judge-pairwise", {}).judge(QUESTION, script))
    first, second = (call.text for call in script.asked)
    assert first.index("It is 4.") < first.index("It is 5.")
    assert second.index("It is 5.") < second.index("It is 4.")


def test_a_refusal_in_one_order_is_no_preference() -> None:
    found = judged("judge-pairwise", *better("first"), Answer("", "content_filter"))
    assert (found.status, found.value) == (Status.REFUSED, None)


def test_a_random_order_is_asked_once_and_depends_on_the_content_alone() -> None:
    firsts = set()
    for i in range(20):
        question = Question(f"p{i}", "q", "AAA", "BBB")
        script = Script(better("first"))
        found = asyncio.run(make_judge("judge-pairwise", {"orders": "random"}).judge(question, script))
        assert found.flipped is None
        a_first = script.asked[0].text.index("AAA") < script.asked[0].text.index("BBB")
        assert found.preference == ("A" if a_first else "B")
        firsts.add(a_first)
    assert firsts == {True, False}


def weighed(m: float, big_m: float, **others: float) -> Answer:
    logprobs = {"m": math.log(m), "M": math.log(big_m), **{k: math.log(v) for k, v in others.items()}}
    return Answer("m", "length", first_logprobs=logprobs)


def test_weights_are_shares_of_the_two_letters() -> None:
    found = judged("judge-weighted", weighed(0.6, 0.2, x=0.2), weighed(0.3, 0.6))
    assert found.votes == pytest.approx((0.75, 2 / 3))
    assert found.value == pytest.approx((0.75 + 2 / 3) / 2)
    assert found.flipped is False
    assert judged("judge-weighted", weighed(0.6, 0.2), weighed(0.6, 0.2)).flipped is True


def test_a_letter_that_is_not_among_the_tokens_weighs_nothing() -> None:
    only = Answer("m", first_logprobs={"m": -0.1, "The": -3.0})
    assert judged("judge-weighted", only, orders="random").value in (0.0, 1.0)


def test_spaced_tokens_are_the_same_letter() -> None:
    spaced = Answer(" m", first_logprobs={" m": math.log(0.4), "m": math.log(0.2), " M": math.log(0.2)})
    found = judged("judge-weighted", spaced, weighed(0.5, 0.5))
    assert found.votes == pytest.approx((0.75, 0.5))


def test_without_probabilities_the_letter_counts() -> None:
    assert judged("judge-weighted", Answer("m"), Answer("M.")).value == 1.0
    assert judged("judge-weighted", Answer("(M)"), Answer("**m**")).value == 0.0
    assert judged("judge-weighted", Answer("maybe"), Answer("m")).status is Status.MALFORMED


def test_a_scale_or_rule_that_cannot_be_is_refused() -> None:
    for name, params in (
        ("judge-score", {"low": 5, "high": 5}),
        ("judge-score", {"repairs": 3}),
        ("judge-pairwise", {"orders": "sideways"}),
        ("judge-pairwise", {"ties": "coin"}),
    ):
        with pytest.raises(AssayError):
            make_judge(name, params)
