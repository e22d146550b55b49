"""Buying what a comparison asks for: answers first, then verdicts, reserved and stored in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from agent.context import AgentContext
from agent.pairwise._choosing import Choice
from agent.pairwise._reading import Contest
from agent.text import amount
from agent.verdicts import verdict_charge
from assay.errors import BudgetExceededError
from storage import jobs, ledger, studies
from storage.events import emit
from storage.jobs import NewJob
from storage.ledger import Charge
from storage.tables import Budget, StudyState, Template
from workers.prices import price_of, worst_case_charge
from workers.work import render

__all__ = ["buy", "finish", "note", "wanted_calls"]


@dataclass(frozen=True)
class Wanted:
    """A call to make, and what it can cost at most."""

    job: NewJob
    charge: Charge


class _Overtaken(Exception):  # noqa: N818
    """Another agent took this step; the transaction is rolled back."""


def wanted_calls(session: Session, contest: Contest, choice: Choice) -> list[Wanted]:
    """The calls that come next: answers that are wanted or that a chosen pair lacks, else the verdicts.

    Raises:
        UnknownPriceError: A price is not known.
    """
    lacking = [
        (row, column)
        for pair, column in choice.cells
        for row in contest.pairs[pair]
        if not contest.answered[row, column]
    ]
    answers = list(dict.fromkeys([*choice.outputs, *lacking]))
    if answers:
        return _answers(session, contest, answers)
    return [_verdict(contest, pair, column) for pair, column in choice.cells] if contest.judge else []


def _answers(session: Session, contest: Contest, cells: Sequence[tuple[int, int]]) -> list[Wanted]:
    ids = {contest.methods[row].template_id for row, _ in cells}
    templates = {one.id: one for one in session.exec(select(Template).where(col(Template.id).in_(ids))).all()}
    prices = [price_of(spec) for spec in contest.specs]
    found = []
    for row, column in cells:
        method, prompt = contest.methods[row], contest.prompts[column]
        charge = worst_case_charge(
            contest.specs[row], prices[row], render(templates[method.template_id], prompt)
        )
        found.append(Wanted(_job(contest, row, _other(contest, row), column, charge, "inference"), charge))
    return found


def _other(contest: Contest, row: int) -> int:
    """The method that an answer is to be compared with: any, it only says what the answer is for."""
    return 1 if row == 0 else 0


def _verdict(contest: Contest, pair: int, column: int) -> Wanted:
    assert contest.judge is not None
    first, second = contest.pairs[pair]
    texts = [contest.answers[row, column].text for row in (first, second)]
    charge = verdict_charge(contest.judge, contest.prompts[column], texts[0], texts[1])
    return Wanted(_job(contest, first, second, column, charge, "judge"), charge)


def _job(contest: Contest, row: int, other: int, column: int, charge: Charge, kind: str) -> NewJob:
    return NewJob(
        method_id=contest.methods[row].id or 0,
        other_method_id=contest.methods[other].id or 0,
        prompt_id=contest.prompts[column].id or 0,
        scorer_id=contest.scorer.id or 0,
        expected_cost=charge.usd,
        kind=kind,
    )


def buy(context: AgentContext, contest: Contest, wanted: Sequence[Wanted], findings: dict[str, Any]) -> bool:
    """Reserve and store what the caps allow, then send it; pauses the study where they allow nothing."""
    try:
        with context.database.begin() as session:
            budgets = ledger.budgets_of(session, _scopes(contest))
            count = ledger.affordable(budgets, [one.charge for one in wanted])
            _take_step(session, contest, findings)
            if count == 0:
                _exhausted(session, contest, budgets, wanted[0].charge)
                return True
            bought = wanted[:count]
            ids = jobs.add(session, contest.study_id, contest.study.step + 1, [one.job for one in bought])
            ledger.reserve(session, budgets, {i: one.charge for i, one in zip(ids, bought, strict=True)})
    except _Overtaken:
        return False
    except BudgetExceededError:
        return True  # another study reserved meanwhile; the next step sees what is left
    size = context.settings.jobs_per_task
    for start in range(0, len(ids), size):
        context.send_jobs(ids[start : start + size], bought[0].job.kind)
    return True


def note(context: AgentContext, contest: Contest, findings: dict[str, Any], reason: str) -> bool:
    """Write down what is waited for; False where that is written already."""
    study = contest.study
    if study.findings == findings and study.reason == reason:
        return False
    try:
        with context.database.begin() as session:
            _take_step(session, contest, findings)
            studies.move(session, contest.study_id, StudyState.RUNNING, reason)
    except _Overtaken:
        return False
    return True


def finish(context: AgentContext, contest: Contest, findings: dict[str, Any], reason: str) -> bool:
    """End the study with what it found."""
    try:
        with context.database.begin() as session:
            _take_step(session, contest, findings)
            studies.move(session, contest.study_id, StudyState.DONE, reason)
    except _Overtaken:
        return False
    return True


def _take_step(session: Session, contest: Contest, findings: dict[str, Any]) -> None:
    """Win the step and store what it found; a study that waited runs from here on."""
    if not studies.take_step(session, contest.study_id, contest.study.step):
        raise _Overtaken
    study = studies.find(session, contest.study_id)
    study.findings = findings
    session.add(study)
    if study.state == StudyState.WAITING:
        studies.move(session, contest.study_id, StudyState.RUNNING)


def _scopes(contest: Contest) -> list[tuple[str, int]]:
    return [("study", contest.study_id), ("benchmark", contest.columns.benchmark_id), ("overall", 0)]


def _exhausted(session: Session, contest: Contest, budgets: Sequence[Budget], charge: Charge) -> None:
    """Pause the study where a cap is spent; where others' reservations take the room, wait for them."""
    tight = next((b for b in budgets if b.cap - b.spent < charge.in_unit(b.unit)), None)
    if tight is None:
        raise _Overtaken
    reason = (
        f"budget exhausted: the {tight.scope} cap of {amount(tight.cap, tight.unit)} leaves"
        f" {amount(tight.cap - tight.spent, tight.unit)}, the next call may cost"
        f" {amount(charge.in_unit(tight.unit), tight.unit)}; raise it with:"
        f" assay study resume {contest.study_id} --max-usd AMOUNT"
    )
    studies.move(session, contest.study_id, StudyState.PAUSED, reason)
    payload = {"study_id": contest.study_id, "scope": tight.scope, "unit": tight.unit}
    emit(session, "budget.exhausted", payload)
