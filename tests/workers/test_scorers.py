"""What every scorer must keep, and tables of examples for each."""

from __future__ import annotations

from typing import Any

import pytest

from assay.errors import UsageError
from workers.backends import Answer
from workers.scorers import SCORERS, Unscorable

LETTERS = {"target": "B", "choices": ["Berlin", "Paris", "Rome", "Madrid"]}
GOOD = {
    "bleu": ({"target": "the cat sat on the mat"}, Answer("the cat sat on the mat"), Answer("dogs bark")),
    "f1": ({"target": "Paris"}, Answer("Paris"), Answer("Rome")),
    "loglikelihood-choice": (
        LETTERS,
        Answer("", choice_logprobs=(-9.0, -1.0, -5.0, -7.0)),
        Answer("", choice_logprobs=(-1.0, -9.0, -5.0, -7.0)),
    ),
    "regex": ({"target": "Par[iy]s"}, Answer("It is paris."), Answer("Rome")),
    "rouge": ({"target": "Paris"}, Answer("Paris"), Answer("Rome")),
    "exact-match": ({"target": "Paris"}, Answer("Paris"), Answer("Rome")),
    "multiple-choice": (LETTERS, Answer("B"), Answer("A")),
    "numeric": ({"target": "42"}, Answer("42"), Answer("41")),
    "replay": ({}, Answer("", score=1.0), Answer("", score=0.0)),
}
TEXT_SCORERS = ("bleu", "exact-match", "f1", "multiple-choice", "numeric", "regex", "rouge")


def score(name: str, text: str, fields: dict[str, Any], **params: Any) -> float:
    return SCORERS.get(name)(**params).score(Answer(text), fields)


# --- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORERS.names())
def test_right_is_one_and_wrong_is_zero_every_time(name: str) -> None:
    fields, right, wrong = GOOD[name]
    scorer = SCORERS.get(name)()
    for _ in range(2):
        assert scorer.score(right, fields) == 1.0
        assert scorer.score(wrong, fields) == 0.0


@pytest.mark.parametrize("name", TEXT_SCORERS)
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer("", "content_filter"), "content filter"),
        (Answer("I cannot", "content_filter"), "content filter"),
        (Answer(""), "empty"),
        (Answer(" \n\t"), "empty"),
        (Answer("Well, let me th", "length"), "cut off"),
    ],
)
def test_refused_empty_and_cut_answers_are_unscorable_never_zero(
    name: str, answer: Answer, reason: str
) -> None:
    with pytest.raises(Unscorable, match=reason):
        SCORERS.get(name)().score(answer, GOOD[name][0])


@pytest.mark.parametrize("name", TEXT_SCORERS)
def test_a_prompt_without_a_target_is_unscorable(name: str) -> None:
    for fields in ({}, {"target": None}, {"target": []}):
        with pytest.raises(Unscorable, match="no target"):
            SCORERS.get(name)().score(Answer("B"), fields)


def test_an_answer_without_a_score_cannot_be_replayed() -> None:
    with pytest.raises(Unscorable, match="needs the backend 'replay'"):
        SCORERS.get("replay")().score(Answer("text"), {})


# --- exact-match -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("Paris", "Paris", 1),
        ("  paris.\n", "Paris", 1),
        ('"Paris"', "Paris", 1),
        ("New   York", "New York", 1),
        ("STRASSE", "straße", 1),
        ("Paris, France", "Paris", 0),
        ("Rome", ["Paris", "Rome"], 1),
        ("7", 7, 1),
        ("-5", "5", 0),
        ("5", "-5", 0),
        ("50%", "50", 1),
        ("+", "-", 0),
        ("+", "+", 1),
    ],
)
def test_exact_match(text: str, target: Any, expected: float) -> None:
    assert score("exact-match", text, {"target": target}) == expected


def test_exact_match_can_be_strict() -> None:
    assert score("exact-match", "paris", {"target": "Paris"}, ignore_case=False) == 0
    assert score("exact-match", "Paris.", {"target": "Paris"}, ignore_punctuation=False) == 0
    assert score("exact-match", " Paris ", {"target": "Paris"}, ignore_punctuation=False) == 1


# --- multiple-choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("[B]", "B"),
        (" B) Paris", "B"),
        ("B: Paris", "B"),
        ("B\nbecause it is the capital", "B"),
        ("The answer is (B)", "B"),
        ("the answer is b.", "B"),
        ("Answer: B", "B"),
        ("ANSWER = C", "C"),
        ("The correct answer is **B**.", "B"),
        ("The answer is: (B) Paris", "B"),
        ("A is tempting, but the answer is C", "C"),
        ("First I said the answer is A. No: the answer is D.", "D"),
        ("It is Paris", "B"),
        ("Paris", "B"),
        ("Paris or Rome", None),
        ("A man walked into a bar and saw Rome", "C"),
        ("A man walked into a bar", None),
        ("A capital question! It must be Paris.", "B"),
        ("A", "A"),
        ("A.", "A"),
        ("A) Berlin", "A"),
        ("A because it is in Germany", "A"),
        ("Because", None),
        ("Definitely", None),
        ("E", None),
        ("I do not know", None),
        ("The answer is a matter of taste", None),
        ("The answer depends", None),
        ("The answer cannot be given", None),
    ],
)
def test_multiple_choice(text: str, letter: str | None) -> None:
    named = [c for c in "ABCD" if score("multiple-choice", text, {**LETTERS, "target": c})]
    assert named == ([letter] if letter else [])


def test_multiple_choice_takes_the_choice_itself_as_target() -> None:
    assert score("multiple-choice", "B", {**LETTERS, "target": "Paris"}) == 1
    assert score("multiple-choice", "(c)", {"target": "c"}) == 1
    with pytest.raises(Unscorable, match="neither a letter nor one of the choices"):
        score("multiple-choice", "B", {**LETTERS, "target": "Lisbon"})


# --- numeric -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("42", "42", 1),
        ("The answer is 42.", "42", 1),
        ("6 * 7 = 42", 42, 1),
        ("1,234.50", "1234.5", 1),
        ("$12.", "12", 1),
        ("$1,000,000", 1_000_000, 1),
        ("-3", "-3", 1),
        ("-$12", "-12", 1),
        ("(3)-5", "5", 1),
        ("-3", "3", 0),
        ("−3", "-3", 1),
        ("x = -0.5", "-0.5", 1),
        ("3 - 5 = -2", "-2", 1),
        ("10-4", "4", 1),
        ("pages 3-5", "5", 1),
        (".5", "0.5", 1),
        ("1e3", "1000", 1),
        ("2.5E-2", "0.025", 1),
        ("50%", "50", 1),
        ("between 3 and 4", "3", 0),
        ("1,2", "2", 1),
        ("0.3000001", "0.3", 1),
        ("0.31", "0.3", 0),
        ("no idea", "3", 0),
        ("42", ["41", "42"], 1),
        ("version 1.2.3", "3", 0),
    ],
)
def test_numeric(text: str, target: Any, expected: float) -> None:
    assert score("numeric", text, {"target": target}) == expected


def test_numeric_tolerance_can_be_set() -> None:
    assert score("numeric", "0.31", {"target": "0.3"}, tolerance=0.02) == 1


def test_a_target_that_is_no_number_is_unscorable() -> None:
    with pytest.raises(Unscorable, match="not a number"):
        score("numeric", "42", {"target": "forty-two"})


# --- wording -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target", "value"),
    [
        ("The cat sat.", "a cat sat", 1.0),
        ("cat", "the black cat", 2 / 3),  # 1 of 1 and 1 of 2 words
        ("dog", "cat", 0.0),
        ("the", "the", 1.0),  # nothing but articles on both sides
        ("Paris, France", ["Rome", "paris"], 2 / 3),
        ("one one two", "one two two", 2 / 3),
    ],
)
def test_f1_is_that_of_squad(text: str, target: Any, value: float) -> None:
    assert score("f1", text, {"target": target}) == pytest.approx(value)


def test_rouge_and_bleu_are_those_of_their_packages() -> None:
    fields = {"target": "the cat was found under the bed"}
    given = "the cat was under the bed"
    assert score("rouge", given, fields) == pytest.approx(
        12 / 13
    )  # longest common subsequence of 6 of 6 and 7
    assert score("rouge", given, fields, variant="rouge2") == pytest.approx(
        2 * (4 / 5) * (4 / 6) / (4 / 5 + 4 / 6)
    )
    assert score("bleu", given, fields) == pytest.approx(0.4301, abs=1e-4)
    assert score("bleu", "THE CAT WAS FOUND UNDER THE BED", fields, lowercase=True) == 1.0
    both = {"target": ["nothing alike", fields["target"]]}
    for name in ("rouge", "bleu", "f1"):
        assert score(name, fields["target"], both) == 1.0


# --- patterns and choices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "params", "value"),
    [
        ("so #### 42", {"extract": r"####\s*(\d+)"}, 1.0),
        ("#### 41 no: #### 42", {"extract": r"####\s*(\d+)"}, 1.0),  # the last counts
        ("42", {"extract": r"####\s*(\d+)"}, 0.0),
        ("it is 42 indeed", {}, 1.0),
    ],
)
def test_regex_takes_the_answer_out_of_the_text(text: str, params: dict[str, Any], value: float) -> None:
    assert score("regex", text, {"target": "42"}, **params) == value


def test_patterns_that_cannot_be_read_are_said_to_be_so() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        SCORERS.get("regex")(extract="(")
    with pytest.raises(Unscorable, match="not a pattern"):
        score("regex", "x", {"target": "("})


def choice(logprobs: list[float] | None, **params: Any) -> float:
    fields = {"target": "B", "choices": ["no", "yes, of course it is"]}
    answer = Answer("", choice_logprobs=logprobs)
    return SCORERS.get("loglikelihood-choice")(**params).score(answer, fields)


def test_the_most_probable_choice_counts() -> None:
    assert choice([-2.0, -1.0]) == 1.0
    assert choice([-1.0, -2.0]) == 0.0
    assert choice([-1.0, -2.0], normalize="bytes") == 1.0  # a long choice is not worse for being long
    for missing in (None, [-1.0]):
        with pytest.raises(Unscorable, match="log-likelihood"):
            choice(missing)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("rouge", {"variant": "rouge9"}),
        ("bleu", {"tokenize": "x"}),
        ("loglikelihood-choice", {"normalize": "x"}),
    ],
)
def test_unknown_options_are_refused(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="known"):
        SCORERS.get(name)(**params)
