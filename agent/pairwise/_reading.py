"""A comparison study as it stands: outputs, verdicts and open calls as arrays.

Shapes: M methods (ascending id), P = M (M - 1) / 2 pairs, N prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, select

from agent.context import AgentContext
from agent.costs import specs_of
from agent.verdicts import JudgeInUse, judges_of
from assay.specs import ModelSpec
from policies.pairs import pairs_of
from storage import studies
from storage.jobs import OPEN_STATES
from storage.matrices import BenchmarkColumns
from storage.preferences import known_preferences
from storage.tables import Benchmark, Job, JobState, Method, Prompt, Scorer, SheetRow, Study
from workers.backends import Answer
from workers.work import known_answers

__all__ = ["PEOPLE", "Contest", "read_contest"]

#: Scorer of verdicts that people give on exported sheets.
PEOPLE = "people"

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Contest:
    """Everything that a step of a comparison decides on.

    Attributes:
        study: The study's row.
        methods: M methods.
        specs: M model descriptions.
        columns: The benchmark's columns.
        scorer: The judge's row.
        judge: The judge with its model and price; None where people judge.
        prompts: N prompts.
        answers: Answers by (row, column).
        pairs: P pairs of rows.
        verdicts: (P, N) +1 = first method, -1 = second, 0 = tie, NaN = none.
        refused: (P, N) the judge (or a person) gave no verdict; not asked again by itself.
        open: (P, N) a verdict is on its way, whichever study asked.
        unanswerable: (M, N) no answer came.
        flips: Verdicts whose two orders disagreed.
        bought: Verdicts that the study itself asked for.
    """

    study: Study
    methods: list[Method]
    specs: list[ModelSpec]
    columns: BenchmarkColumns
    scorer: Scorer
    judge: JudgeInUse | None
    prompts: list[Prompt]
    answers: dict[tuple[int, int], Answer]
    pairs: list[tuple[int, int]]
    verdicts: NDArray[np.float64]
    refused: Mask
    open: Mask
    unanswerable: Mask
    flips: int
    bought: int
    answered: Mask = field(init=False)

    def __post_init__(self) -> None:
        answered = np.zeros((len(self.methods), len(self.prompts)), dtype=bool)
        for cell in self.answers:
            answered[cell] = True
        object.__setattr__(self, "answered", answered)

    @property
    def study_id(self) -> int:
        """The study's number."""
        assert self.study.id is not None
        return self.study.id

    @property
    def closed(self) -> Mask:
        """(P, N) pairs of answers that nobody will judge: refused, or an answer is not to be had."""
        first, second = np.array(self.pairs).T
        closed: Mask = self.refused | self.unanswerable[first] | self.unanswerable[second]
        return closed


def read_contest(session: Session, context: AgentContext, study_id: int) -> Contest:
    """Read the study.

    Raises:
        BadInputError: The judge's model is not registered.
        UnknownPriceError: A price is not known.
    """
    study = studies.find(session, study_id)
    columns = context.columns(session, session.get_one(Benchmark, study.benchmark_id))
    methods = studies.methods_of(session, study_id)
    scorer = session.get_one(Scorer, study.scorer_id)
    prompts = _prompts(session, columns)
    ids = [method.id or 0 for method in methods]
    pairs = pairs_of(len(methods))
    verdicts, flips = _verdicts(session, columns, scorer, ids, pairs)
    refused, waiting, unanswerable, bought = _jobs(session, study, columns, ids, pairs)
    _sheets(session, study, columns, ids, pairs, refused)
    return Contest(
        study=study,
        methods=methods,
        specs=specs_of(session, methods),
        columns=columns,
        scorer=scorer,
        judge=None if scorer.name == PEOPLE else judges_of(session, [scorer.id or 0])[scorer.id or 0],
        prompts=prompts,
        answers=_answers(session, ids, prompts),
        pairs=pairs,
        verdicts=verdicts,
        refused=refused & np.isnan(verdicts),
        open=waiting,
        unanswerable=unanswerable,
        flips=flips,
        bought=bought,
    )


def _prompts(session: Session, columns: BenchmarkColumns) -> list[Prompt]:
    wanted = [int(pk) for pk in columns.prompt_pks]
    found: dict[int, Prompt] = {}
    for start in range(0, len(wanted), 500):
        part = wanted[start : start + 500]
        found |= {
            int(one.id or 0): one
            for one in session.exec(select(Prompt).where(col(Prompt.id).in_(part))).all()
        }
    return [found[pk] for pk in wanted]


def _answers(session: Session, ids: list[int], prompts: list[Prompt]) -> dict[tuple[int, int], Answer]:
    known: dict[tuple[int, str], Answer] = {}
    for start in range(0, len(prompts), 500):
        known |= known_answers(session, ids, prompts[start : start + 500])
    return {
        (row, column): known[method_id, prompt.content_hash]
        for row, method_id in enumerate(ids)
        for column, prompt in enumerate(prompts)
        if (method_id, prompt.content_hash) in known
    }


def _verdicts(
    session: Session, columns: BenchmarkColumns, scorer: Scorer, ids: list[int], pairs: list[tuple[int, int]]
) -> tuple[NDArray[np.float64], int]:
    row_of = {(ids[a], ids[b]): p for p, (a, b) in enumerate(pairs)}
    verdicts, flips = np.full((len(pairs), columns.n_prompts), np.nan), 0
    for one in known_preferences(session, [scorer.id or 0], ids):
        column = columns.position.get(one.prompt_id)
        if column is not None:
            verdicts[row_of[one.method_a_id, one.method_b_id], column] = np.sign(one.value - 0.5)
            flips += bool(one.details.get("flipped"))
    return verdicts, flips


def _jobs(
    session: Session, study: Study, columns: BenchmarkColumns, ids: list[int], pairs: list[tuple[int, int]]
) -> tuple[Mask, Mask, Mask, int]:
    """Refused and open pairs, answers that did not come, and verdicts that this study asked for."""
    place = {pk: row for row, pk in enumerate(ids)}
    pair_of = {pair: p for p, pair in enumerate(pairs)}
    refused = np.zeros((len(pairs), columns.n_prompts), dtype=bool)
    waiting, gone, bought = refused.copy(), np.zeros((len(ids), columns.n_prompts), dtype=bool), 0
    query = select(Job).where(
        Job.scorer_id == study.scorer_id,
        col(Job.method_id).in_(ids),
        col(Job.other_method_id).in_(ids),
        Job.state != JobState.CANCELLED,
    )
    for job in session.exec(query).all():
        column = columns.position.get(job.prompt_id)
        if column is None:
            continue
        if job.kind == "inference":
            gone[place[job.method_id], column] |= job.state == JobState.PARKED
            continue
        pair = pair_of[place[job.method_id], place[job.other_method_id]]
        refused[pair, column] |= job.state == JobState.PARKED
        waiting[pair, column] |= job.state in OPEN_STATES
        bought += job.study_id == study.id
    return refused, waiting, gone, bought


def _sheets(
    session: Session,
    study: Study,
    columns: BenchmarkColumns,
    ids: list[int],
    pairs: list[tuple[int, int]],
    refused: Mask,
) -> None:
    """Rows of sheets that came back without a verdict are refused."""
    row_of = {(ids[a], ids[b]): p for p, (a, b) in enumerate(pairs)}
    for one in session.exec(select(SheetRow).where(SheetRow.study_id == study.id, SheetRow.skipped)).all():
        pair = row_of.get((one.method_a_id, one.method_b_id))
        if pair is not None and one.prompt_id in columns.position:
            refused[pair, columns.position[one.prompt_id]] = True
