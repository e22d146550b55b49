"""The judges of a benchmark: which cells wait for a verdict, and what verdicts cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, select

from assay.specs import ModelSpec, Price
from storage.ledger import Charge
from storage.tables import Prompt, Scorer
from workers.judges import Judge, Question, is_judge, make_judge
from workers.judging import reference_of, with_parameters
from workers.prices import CHARACTERS_PER_TOKEN, expected_usd, price_of, worst_case_charge
from workers.work import judge_spec

__all__ = ["JudgeInUse", "expected_verdict_usd", "judges_of", "longest_answer", "verdict_charge"]

#: No tokenizer in use makes more bytes of a token on average; for what is looked ahead to, not for what is
#: reserved: the verdict's own reservation counts the bytes of the answer that came.
MOST_BYTES_PER_TOKEN = 8


@dataclass(frozen=True)
class JudgeInUse:
    """A scorer that is a judge, with its model and price."""

    judge: Judge
    spec: ModelSpec
    price: Price


def judges_of(session: Session, scorer_ids: Iterable[int]) -> dict[int, JudgeInUse]:
    """Those of the scorers that are judges, by scorer id.

    Raises:
        BadInputError: A judge's model is not registered.
        UnknownPriceError: Its price is not known.
    """
    rows = session.exec(select(Scorer).where(col(Scorer.id).in_({int(pk) for pk in scorer_ids}))).all()
    found = {}
    for row in rows:
        if row.id is not None and is_judge(row.name):
            spec = judge_spec(session, row)
            found[row.id] = JudgeInUse(make_judge(row.name, row.params), spec, price_of(spec))
    return found


def verdict_charge(used: JudgeInUse, prompt: Prompt, answer: str, other: str | None = None) -> Charge:
    """What judging an answer can cost at most, over all the calls that it may take.

    Args:
        used: The judge.
        prompt: The prompt.
        answer: The answer, or one as long as it may become.
        other: In a comparison of two methods the answer of B.
    """
    if used.judge.compares and other is None:
        other = str(prompt.fields.get("reference", ""))
    reference = reference_of(prompt.fields, used.judge.compares)
    calls = used.judge.longest(Question(prompt.key, prompt.text, answer, other, reference))
    charges = (
        worst_case_charge(with_parameters(used.spec, call.parameters), used.price, call.text)
        for call in calls
    )
    return sum(charges, start=Charge(calls=0))


def longest_answer(spec: ModelSpec) -> str:
    """An answer as long as a model's may become, for looking ahead."""
    return "x" * (MOST_BYTES_PER_TOKEN * int(spec.parameters.get("max_tokens", spec.max_tokens)))


def expected_verdict_usd(
    judges: Mapping[int, JudgeInUse],
    scorer_pks: Sequence[int] | NDArray[np.int64],
    dataset_index: NDArray[np.intp],
    lengths: NDArray[np.int64],
    answer_tokens: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(N,) micro-dollars that judging an answer to each prompt will probably cost; 0 where no judge is asked.

    Args:
        judges: Judges by scorer id.
        scorer_pks: (D,) scorer of each dataset.
        dataset_index: (N,) dataset of each prompt.
        lengths: (N,) length of each prompt in characters.
        answer_tokens: (N,) typical length of an answer in tokens.
    """
    usd = np.zeros(len(lengths))
    for d, scorer_pk in enumerate(scorer_pks):
        at = np.flatnonzero(dataset_index == d)
        used = judges.get(int(scorer_pk))
        if used is not None and len(at):
            usd[at] = _expected(used, lengths[at], answer_tokens[at])
    return usd


def _expected(
    used: JudgeInUse, lengths: NDArray[np.int64], answer_tokens: NDArray[np.float64]
) -> NDArray[np.float64]:
    """All calls see the prompt; the answer's typical length stands for each prompt's own."""
    answer = "x" * round(float(answer_tokens.mean()) * CHARACTERS_PER_TOKEN)
    usd = np.zeros(len(lengths))
    for call in used.judge.usual(Question("", "", answer, answer)):
        spec = with_parameters(used.spec, call.parameters)
        most = int(spec.parameters.get("max_tokens", spec.max_tokens))
        reply = np.full(len(lengths), min(most, max(1.0, used.spec.max_tokens / 4)))
        usd += expected_usd(used.price, lengths + len(call.text), reply)
    return usd
