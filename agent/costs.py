"""What buying a cell costs, verdict included: the expectation that policies weigh, and the worst case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from agent.context import AgentContext
from agent.verdicts import JudgeInUse, expected_verdict_usd, judges_of, longest_answer, verdict_charge
from assay.specs import ModelSpec
from storage.ledger import Charge
from storage.matrices import BenchmarkColumns
from storage.tables import Budget, Method, Model, Output, Prompt, Template
from workers.prices import expected_usd, price_of, worst_case_charge
from workers.work import known_answers, render, spec_of

__all__ = ["Purchase", "expected_costs", "expected_usd_of", "priced_purchases", "specs_of"]


@dataclass(frozen=True)
class Purchase:
    """The next call for a cell.

    Attributes:
        kind: "inference", or "judge" where the answer is there and waits for its verdict.
        charge: What the call can cost at most: to be reserved.
        ahead: What the verdict can cost at most that must follow the call: to be looked ahead to.
    """

    kind: str
    charge: Charge
    ahead: Charge

    @property
    def whole(self) -> Charge:
        """What the cell can still cost at most."""
        return self.charge + self.ahead

    def in_budget(self, budget: Budget) -> int:
        """The part of it that counts for a budget: a model and its judge may be of different endpoints."""
        return self.charge.in_budget(budget) + self.ahead.in_budget(budget)


def specs_of(session: Session, methods: Sequence[Method]) -> list[ModelSpec]:
    """The model description of each method, with the method's parameters laid over the model's."""
    models = {
        model.id: model
        for model in session.exec(
            select(Model).where(col(Model.id).in_({method.model_id for method in methods}))
        ).all()
    }
    return [
        (spec := spec_of(models[method.model_id])).model_copy(
            update={"parameters": {**spec.parameters, **method.parameters}}
        )
        for method in methods
    ]


def expected_usd_of(
    session: Session,
    context: AgentContext,
    columns: BenchmarkColumns,
    methods: Sequence[Method],
    specs: Sequence[ModelSpec],
) -> NDArray[np.float64]:
    """(R, N) micro-dollars that each cell will probably cost: its verdict, and its answer unless it is there.

    Raises:
        UnknownPriceError: A model's price is not known.
    """
    prices = [price_of(spec) for spec in specs]
    judges = judges_of(session, columns.scorer_pks)
    if all(price.free for price in [*prices, *(used.price for used in judges.values())]):
        return np.zeros((len(specs), columns.n_prompts))
    lengths = context.prompt_lengths(session, columns)
    typical = context.answer_lengths(session, columns).mean_tokens(columns)
    usd = np.empty((len(specs), columns.n_prompts))
    for row, (spec, price) in enumerate(zip(specs, prices, strict=True)):
        tokens = np.where(np.isnan(typical), spec.max_tokens / 4, typical)
        usd[row] = expected_usd(price, lengths, tokens) if not price.free else 0.0
        usd[row, _answered(session, columns, methods[row])] = 0.0
        usd[row] += expected_verdict_usd(judges, columns.scorer_pks, columns.dataset_index, lengths, tokens)
    return usd


def _answered(session: Session, columns: BenchmarkColumns, method: Method) -> list[int]:
    """Columns whose prompt the method has answered already, in this dataset or in one of the same content."""
    same, bought = aliased(Prompt), aliased(Prompt)
    query = (
        select(same.id)
        .join(bought, col(bought.content_hash) == col(same.content_hash))
        .join(Output, col(Output.prompt_id) == col(bought.id))
        .where(col(Output.method_id) == method.id)
        .where(col(same.dataset_id).in_([int(pk) for pk in columns.dataset_pks]))
    )
    return sorted({columns.position[pk] for pk in session.exec(query).all() if pk in columns.position})


def expected_costs(
    session: Session,
    context: AgentContext,
    columns: BenchmarkColumns,
    methods: Sequence[Method],
    specs: Sequence[ModelSpec],
) -> NDArray[np.float64]:
    """(R, N) expected cost of each cell, relative to the mean; 1 everywhere where calls are free.

    Raises:
        UnknownPriceError: A model's price is not known.
    """
    usd = expected_usd_of(session, context, columns, methods, specs)
    if not usd.any():
        return np.ones_like(usd)
    floor = usd[usd > 0].min()
    relative: NDArray[np.float64] = np.maximum(usd, floor) / usd.mean()
    return relative


def priced_purchases(
    session: Session,
    columns: BenchmarkColumns,
    methods: Sequence[Method],
    specs: Sequence[ModelSpec],
    cells: Sequence[tuple[int, int]],
) -> list[Purchase]:
    """The next call for each (row, column) cell, and what it can cost at most.

    Raises:
        UnknownPriceError: The price of a model or judge is not known.
    """
    judges = judges_of(session, columns.scorer_pks)
    prompts = _prompts(session, columns, {column for _, column in cells})
    templates = _templates(session, methods)
    rows = sorted({row for row, _ in cells})
    answers = (
        known_answers(session, [methods[row].id or 0 for row in rows], prompts.values()) if judges else {}
    )
    found = []
    for row, column in cells:
        prompt, used = prompts[column], judges.get(int(columns.scorer_pks[columns.dataset_index[column]]))
        known = answers.get((methods[row].id or 0, prompt.content_hash))
        if used is not None and known is not None:
            found.append(Purchase("judge", verdict_charge(used, prompt, known.text), Charge(calls=0)))
            continue
        text = render(templates[methods[row].template_id], prompt)
        charge = worst_case_charge(specs[row], price_of(specs[row]), text)
        found.append(Purchase("inference", charge, _ahead(used, prompt, specs[row])))
    return found


def _ahead(used: JudgeInUse | None, prompt: Prompt, spec: ModelSpec) -> Charge:
    if used is None:
        return Charge(calls=0)
    return verdict_charge(used, prompt, longest_answer(spec))


def _prompts(session: Session, columns: BenchmarkColumns, wanted: set[int]) -> Mapping[int, Prompt]:
    pks = [int(columns.prompt_pks[column]) for column in wanted]
    rows = session.exec(select(Prompt).where(col(Prompt.id).in_(pks))).all()
    return {columns.position[prompt.id or 0]: prompt for prompt in rows}


def _templates(session: Session, methods: Sequence[Method]) -> Mapping[int | None, Template]:
    wanted = {method.template_id for method in methods}
    rows = session.exec(select(Template).where(col(Template.id).in_(wanted))).all()
    return {template.id: template for template in rows}
