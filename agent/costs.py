"""What buying a cell costs: the expectation that policies weigh, and the worst case that is reserved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session, col, func, select

from agent.context import AgentContext
from assay.specs import ModelSpec
from storage.ledger import Charge
from storage.matrices import BenchmarkColumns
from storage.tables import Method, Model, Output, Prompt, Template
from workers.prices import expected_usd, price_of, worst_case_charge
from workers.work import render, spec_of

__all__ = ["expected_costs", "expected_usd_of", "specs_of", "worst_case_charges"]


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
    session: Session, context: AgentContext, columns: BenchmarkColumns, specs: Sequence[ModelSpec]
) -> NDArray[np.float64]:
    """(R, N) micro-dollars that each cell will probably cost.

    Raises:
        UnknownPriceError: A model's price is not known.
    """
    prices = [price_of(spec) for spec in specs]
    if all(price.free for price in prices):
        return np.zeros((len(specs), columns.n_prompts))
    lengths = context.prompt_lengths(session, columns)
    typical = _typical_output_tokens(session, columns)
    return np.stack(
        [
            expected_usd(price, lengths, np.where(np.isnan(typical), spec.max_tokens / 4, typical))
            for spec, price in zip(specs, prices, strict=True)
        ]
    )


def expected_costs(
    session: Session, context: AgentContext, columns: BenchmarkColumns, specs: Sequence[ModelSpec]
) -> NDArray[np.float64]:
    """(R, N) expected cost of each cell, relative to the mean; 1 everywhere where calls are free.

    Raises:
        UnknownPriceError: A model's price is not known.
    """
    usd = expected_usd_of(session, context, columns, specs)
    if not usd.any():
        return np.ones_like(usd)
    floor = usd[usd > 0].min()
    relative: NDArray[np.float64] = np.maximum(usd, floor) / usd.mean()
    return relative


def _typical_output_tokens(session: Session, columns: BenchmarkColumns) -> NDArray[np.float64]:
    """(N,) mean answer length of each prompt's dataset so far; NaN where there is no answer yet."""
    query = (
        select(Prompt.dataset_id, func.avg(Output.output_tokens))
        .join(Output, col(Output.prompt_id) == col(Prompt.id))
        .where(col(Prompt.dataset_id).in_([int(pk) for pk in columns.dataset_pks]))
        .where(col(Output.output_tokens) > 0)  # imported answers carry no count
        .group_by(col(Prompt.dataset_id))
    )
    found = {dataset_id: float(mean) for dataset_id, mean in session.exec(query).all()}
    by_dataset = np.array([found.get(int(pk), np.nan) for pk in columns.dataset_pks])
    return by_dataset[columns.dataset_index]


def worst_case_charges(
    session: Session, methods: Sequence[Method], specs: Sequence[ModelSpec], cells: Sequence[tuple[int, int]]
) -> list[Charge]:
    """What each (row, prompt id) cell can cost at most.

    Raises:
        UnknownPriceError: A model's price is not known.
    """
    prompts = {
        prompt.id: prompt
        for prompt in session.exec(select(Prompt).where(col(Prompt.id).in_([pk for _, pk in cells]))).all()
    }
    templates = {
        template.id: template
        for template in session.exec(
            select(Template).where(col(Template.id).in_({method.template_id for method in methods}))
        ).all()
    }
    prices = [price_of(spec) for spec in specs]
    return [
        worst_case_charge(
            specs[row], prices[row], render(templates[methods[row].template_id], prompts[prompt_pk])
        )
        for row, prompt_pk in cells
    ]
