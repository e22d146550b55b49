"""What a study would cost and how sure it would be, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlmodel import Session

from agent.backtest import replay
from agent.context import AgentContext
from agent.costs import expected_usd_of, priced_purchases, specs_of
from agent.intervals import estimate_rows
from assay.errors import UsageError
from assay.matrix import ScoreMatrix
from estimators import SupportsLinearization
from policies import POLICIES, make_policy
from policies.hardness import Advice, advise
from storage import versions
from storage.matrices import load_matrix
from storage.tables import Benchmark, EstimatorVersion, Method

__all__ = ["PlanStep", "advice_for", "plan_study"]

#: History rows that the study is rehearsed on.
REHEARSED = 20


@dataclass(frozen=True)
class PlanStep:
    """What buying so many prompts for one method would mean.

    Attributes:
        prompts: How many are bought.
        ceiling_usd: What they can cost at most, dollars.
        expected_usd: What they will probably cost, dollars.
        width: Mean interval width in a rehearsal on history methods; None where there is no history.
    """

    prompts: int
    ceiling_usd: float
    expected_usd: float
    width: float | None


def plan_study(
    session: Session,
    context: AgentContext,
    benchmark: Benchmark,
    method: Method,
    *,
    policy: str,
    estimator: str,
    budgets: Sequence[int],
    level: float,
) -> list[PlanStep]:
    """One step per budget (numbers of prompts, ascending).

    Raises:
        UsageError: The benchmark has fewer prompts than a budget, or the policy is unknown.
        UnknownPriceError: The model's price is not known.
    """
    columns = context.columns(session, benchmark)
    if max(budgets) > columns.n_prompts:
        raise UsageError(f"the benchmark has {columns.n_prompts} prompts, not {max(budgets)}")
    POLICIES.get(policy)
    specs = specs_of(session, [method])
    cells = [(0, column) for column in range(columns.n_prompts)]
    purchases = priced_purchases(session, columns, [method], specs, cells)
    ceiling = np.array([purchase.whole.usd for purchase in purchases])
    expected = expected_usd_of(session, context, columns, [method], specs)[0]
    widths = _widths(session, context, benchmark, policy, estimator, budgets, level)
    return [
        # Which prompts will be chosen is not known: the ceiling takes the dearest, the expectation the mean.
        PlanStep(k, float(np.sort(ceiling)[-k:].sum()) / 1e6, float(expected.mean() * k) / 1e6, width)
        for k, width in zip(budgets, widths, strict=True)
    ]


def _widths(
    session: Session,
    context: AgentContext,
    benchmark: Benchmark,
    policy_name: str,
    estimator_name: str,
    budgets: Sequence[int],
    level: float,
) -> list[float | None]:
    """Mean interval width at each budget, rehearsed on complete history rows with the fitted champion."""
    version = versions.usable(session, benchmark, estimator_name, {})
    if version is None or version.id is None:
        return [None] * len(budgets)
    estimator = context.estimator(session, version.id)
    policy = make_policy(policy_name)
    context.restore_policy(session, policy, version)
    history = load_matrix(session, benchmark, context.settings.cache_dir).matrix
    rows = _rehearsal_rows(history, version)
    if rows is None:
        return [None] * len(budgets)
    policy.prepare(history, estimator)
    factors = context.intervals(session, version.id).get(policy.design)
    widths: dict[int, float] = {}
    for budget, now in replay(rows, policy, estimator, budgets=list(budgets), batch=10):
        found = estimate_rows(estimator, now.observed, level, factors)
        widths[budget] = float(np.mean([row.high - row.low for row in found]))
    return [widths[budget] for budget in budgets]


def _rehearsal_rows(history: ScoreMatrix, version: EstimatorVersion) -> ScoreMatrix | None:
    """Some complete rows, those first that the version has not learned from."""
    learned = set(version.history.get("methods", []))
    complete = np.flatnonzero(history.observed.all(axis=1))
    if len(complete) == 0:
        return None
    unseen = [i for i in complete if history.method_ids[i] not in learned]
    seen = [i for i in complete if history.method_ids[i] in learned]
    return history.rows(np.array([*unseen, *seen][:REHEARSED], dtype=np.intp))


def advice_for(session: Session, context: AgentContext, benchmark: Benchmark, estimator: str) -> Advice:
    """Which policy fits the objective "best" on this benchmark."""
    history = load_matrix(session, benchmark, context.settings.cache_dir).matrix
    complete = int(history.observed.all(axis=1).sum())
    version = versions.usable(session, benchmark, estimator, {})
    linear = version is not None and isinstance(
        context.estimator(session, version.id or 0), SupportsLinearization
    )
    return advise(history_rows=complete, linearizes=linear, belief=None)
