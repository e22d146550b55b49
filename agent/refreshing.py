"""What refreshing the leaderboard after new prompts will cost, before anything is spent."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlmodel import Session

from agent.context import AgentContext
from agent.costs import expected_usd_of, priced_purchases, specs_of
from agent.registration import AddedPrompts, add_prompt_file
from agent.rules import evaluated_before
from assay.specs import ModelSpec
from storage import catalog
from storage.matrices import BenchmarkColumns, load_rows
from storage.tables import Benchmark, Method

__all__ = ["RefreshPlan", "plan_prompt_file", "refresh_plan"]


@dataclass(frozen=True)
class RefreshPlan:
    """What the agent will do about new prompts.

    Attributes:
        studies: Refresh studies, one per method that was evaluated before.
        prompts: Prompts that they buy at most, together.
        expected_usd: What these will probably cost, dollars.
        ceiling_usd: What they can cost at most, dollars; no more than the studies' caps.
    """

    studies: int
    prompts: int
    expected_usd: float
    ceiling_usd: float

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields."""
        return asdict(self)


class _Undo(Exception):  # noqa: N818
    """Ends a transaction whose outcome was only to be looked at."""


def plan_prompt_file(context: AgentContext, benchmark: str, file: Path) -> tuple[AddedPrompts, RefreshPlan]:
    """What adding a file of prompts would do, and what the agent would spend then; nothing is stored.

    Raises:
        UsageError: The benchmark or a scorer is unknown.
        BadInputError: A line or entry of the file is wrong.
        UnknownPriceError: A model's price is not known.
    """
    found: list[tuple[AddedPrompts, RefreshPlan]] = []
    with contextlib.suppress(_Undo), context.database.begin() as session:
        row = catalog.find_benchmark(session, benchmark)
        change = add_prompt_file(session, file, benchmark)
        session.refresh(row)
        plan = refresh_plan(session, context, row) if change.added else RefreshPlan(0, 0, 0.0, 0.0)
        found.append((change, plan))
        raise _Undo
    return found[0]


def refresh_plan(session: Session, context: AgentContext, benchmark: Benchmark) -> RefreshPlan:
    """Plan for the benchmark's present prompts, as the rule for prompts.added will act on them.

    Raises:
        UnknownPriceError: A model's price is not known.
    """
    methods = evaluated_before(session, benchmark, benchmark.prompts_revision)
    if not methods:
        return RefreshPlan(0, 0, 0.0, 0.0)
    columns = context.columns(session, benchmark)
    specs = specs_of(session, methods)
    left = np.isnan(load_rows(session, columns, np.array([m.id for m in methods], dtype=np.int64)))
    count = np.minimum(left.sum(axis=1), context.settings.max_prompts)
    cap = context.settings.max_usd
    usd = expected_usd_of(session, context, columns, methods, specs) / 1e6
    expected = np.where(left, usd, np.nan)
    worst = _worst_cases(session, columns, methods, specs, np.asarray(usd.any(axis=1)))
    # Which prompts will be chosen is not known: the ceiling takes the dearest, the expectation the mean.
    mean = np.array([np.nanmean(row) if n else 0.0 for row, n in zip(expected, count, strict=True)])
    dearest = [
        np.sort(row[free])[len(row[free]) - n :].sum()
        for row, free, n in zip(worst, left, count, strict=True)
    ]
    return RefreshPlan(
        studies=len(methods),
        prompts=int(count.sum()),
        expected_usd=float(np.minimum(mean * count, cap).sum()),
        ceiling_usd=float(np.minimum(dearest, cap).sum()),
    )


def _largest(values: NDArray[np.float64], n: int) -> float:
    """Sum of the n largest."""
    return float(np.sort(values)[len(values) - n :].sum())


def _worst_cases(
    session: Session,
    columns: BenchmarkColumns,
    methods: list[Method],
    specs: list[ModelSpec],
    costs: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(R, N) dollars that each cell can cost at most, with its verdict; 0 for methods that cost nothing."""
    worst = np.zeros((len(methods), columns.n_prompts))
    cells = [(0, column) for column in range(columns.n_prompts)]
    for row in np.flatnonzero(costs):
        bought = priced_purchases(session, columns, [methods[row]], [specs[row]], cells)
        worst[row] = [purchase.whole.usd for purchase in bought]
    return worst / 1e6
