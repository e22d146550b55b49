"""Ask until the winner is clear enough (DiffUse, algorithm 1; the same loop serves every pair policy)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.errors import UsageError
from policies.pairs._base import PairPlan, PairVerdict

__all__ = ["IterativeRule", "Progress", "progress", "run_iteratively"]


@dataclass(frozen=True)
class IterativeRule:
    """When to stop.

    Attributes:
        risk: Name the winner once the plan's risk is at most this.
        minimum: First sample size.
        maximum: Most verdicts bought; at that many without a winner the pair is inconclusive.
        batch: Sample sizes between two looks at the risk.
    """

    risk: float = 0.1
    minimum: int = 5
    maximum: int = 200
    batch: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.risk < 1 or not 1 <= self.minimum <= self.maximum or self.batch < 1:
            raise UsageError(
                f"no stopping rule with risk {self.risk:g}, minimum {self.minimum}, maximum {self.maximum}",
                "0 < risk < 1 and 1 <= minimum <= maximum",
            )


@dataclass(frozen=True)
class Progress:
    """Where a pair stands.

    Attributes:
        k: Sample size reached.
        bought: Verdicts bought in all, those that no longer count included.
        missing: Prompts to ask next; empty = over.
        verdict: What follows from the sample of size k; None while some of it is missing.
        winner: +1 = A, -1 = B, 0 = inconclusive; None while it is not over.
    """

    k: int
    bought: int
    missing: NDArray[np.intp]
    verdict: PairVerdict | None
    winner: int | None


def progress(
    plan: PairPlan,
    verdicts: NDArray[np.float64],
    rule: IterativeRule,
    *,
    level: float | None = 0.95,
    k: int = 1,
    closed: NDArray[np.bool_] | None = None,
) -> Progress:
    """Where the pair stands, from its verdicts alone.

    Args:
        plan: The pair's plan.
        verdicts: (N,) +1, -1, 0; NaN = none.
        rule: When to stop.
        level: Level of the interval; None = none is wanted.
        k: Sample size known to be passed already (saves walking there again).
        closed: (N,) prompts that will have no verdict; the sample goes on without them.
    """
    gone = np.isnan(verdicts) if closed is None else np.isnan(verdicts) & ~closed
    bought, most = int((~np.isnan(verdicts)).sum()), min(rule.maximum, len(verdicts))
    last = len(verdicts) if closed is not None and closed.any() else most
    k = min(max(k, rule.minimum), last)
    while True:
        sample = plan.sample(k)
        missing = sample[gone[sample]]
        if len(missing) and bought < most:
            return Progress(k, bought, missing[: most - bought], None, None)
        if len(missing):  # the last verdict went to one half of a split: decide by the sample before
            verdict = plan.verdict(verdicts, k - 1, level=level)
            return Progress(k - 1, bought, missing[:0], verdict, 0)
        verdict = plan.verdict(verdicts, k, level=level)
        if verdict.winner and verdict.risk <= rule.risk:
            return Progress(k, bought, missing, verdict, verdict.winner)
        if k >= last or bought >= most:
            return Progress(k, bought, missing, verdict, 0)
        k = min(k + rule.batch, last)


def run_iteratively(plan: PairPlan, answers: NDArray[np.float64], rule: IterativeRule) -> Progress:
    """Play algorithm 1 on known answers, (N,) without NaN."""
    for now in _steps(plan, answers, rule):
        if now.winner is not None:
            return now
    raise AssertionError("a pair always comes to an end")


def _steps(plan: PairPlan, answers: NDArray[np.float64], rule: IterativeRule) -> Iterator[Progress]:
    verdicts, k = np.full(len(answers), np.nan), 1
    while True:
        now = progress(plan, verdicts, rule, k=k, level=None)
        yield now
        verdicts[now.missing] = answers[now.missing]
        k = now.k
