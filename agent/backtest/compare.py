"""The objective "compare": how often a pair policy names the better of two methods, by verdicts bought.

Shapes: M methods, N prompts, d vector length, p text features. One run replays one policy on one pair, on a
random share of the prompts that is treated as if it were the whole test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import UsageError
from policies.pairs import (
    IterativeRule,
    PairHistory,
    PairPolicy,
    PairProblem,
    run_iteratively,
)

__all__ = ["PairBench", "PairRun", "play_budgets", "play_iteratively", "verdicts"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairBench:
    """Methods whose every verdict is known, to try pair policies on.

    Attributes:
        scores: (M, N) scores; the verdict of a pair on a prompt is the sign of the difference, NaN = none.
        rows: The methods that are paired; all others are history only.
        vectors: (M, N, d) output vectors, zero for methods without outputs, or None.
        inputs: (N, d) prompt vectors, or None.
        described: (r,) the rows with outputs.
        features: (r, N, p) text features of their outputs, or None.
        likeness: (r, r, N) how alike two of their outputs are, or None.
        history: Rows that every pair may learn from, itself left out.
    """

    scores: Floats
    rows: tuple[int, ...]
    vectors: NDArray[np.float32] | None = None
    inputs: NDArray[np.float32] | None = None
    described: tuple[int, ...] = ()
    features: Floats | None = None
    likeness: NDArray[np.float32] | None = None
    history: tuple[int, ...] = ()

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of `rows`."""
        return list(combinations(self.rows, 2))

    def outputs_of(self, pair: tuple[int, int], columns: NDArray[np.intp]) -> dict[str, Any]:
        """What is known of a pair's outputs on these prompts, as fields of `PairProblem`."""
        if self.features is None or not set(pair) <= set(self.described):
            return {}
        both = [self.described.index(row) for row in pair]
        alike = None if self.likeness is None else self.likeness[both][:, :, columns]
        return {"features": self.features[both][:, columns], "likeness": alike}

    def past(self) -> PairHistory:
        """The history's rows, before a pair is left out."""
        outside = np.setdiff1d(np.arange(len(self.scores)), self.history)
        return PairHistory(self.scores, self.described, self.features, self.likeness).without(
            outside.tolist()
        )


@dataclass(frozen=True)
class PairRun:
    """One pair on one share of the prompts.

    Attributes:
        problem: What the policy sees.
        answers: (n,) every verdict.
    """

    problem: PairProblem
    answers: Floats

    @classmethod
    def of(cls, bench: PairBench, pair: tuple[int, int], seed: int, share: float) -> PairRun:
        """Draw the share, the same prompts for all pairs of a seed; prompts without verdict are left out."""
        n = bench.scores.shape[1]
        drawn = np.sort(np.random.default_rng([seed]).choice(n, round(share * n), replace=False))
        answers = verdicts(bench.scores[pair[0], drawn], bench.scores[pair[1], drawn])
        columns, answers = drawn[~np.isnan(answers)], answers[~np.isnan(answers)]
        first, second = (None if bench.vectors is None else bench.vectors[i, columns] for i in pair)
        problem = PairProblem(
            n_prompts=len(columns),
            first=first,
            second=second,
            inputs=None if bench.inputs is None else bench.inputs[columns],
            **bench.outputs_of(pair, columns),
            columns=columns,
            rng_seed=(seed, *pair),
        )
        return cls(problem, answers)

    @property
    def winner(self) -> int:
        """The test winner: +1, -1, or 0 for a draw."""
        return int(np.sign(self.answers.sum()))


def verdicts(first: Floats, second: Floats) -> Floats:
    """+1 where the first scores higher, -1 lower, 0 equal, NaN where either has no score."""
    return np.sign(first.astype(np.float64) - second.astype(np.float64))


def play_budgets(
    policy: PairPolicy,
    bench: PairBench,
    pair: tuple[int, int],
    seed: int,
    share: float,
    budgets: Sequence[int],
) -> list[dict[str, float]]:
    """One entry per budget: success (1, 0; .5 where the sample decides nothing), and how the distance errs.

    The pair's own rows are left out of the history. A pair that is a draw over all prompts has no winner to
    find and gives NaN.
    """
    run = PairRun.of(bench, pair, seed, share)
    policy.prepare(bench.past().without(pair))
    plan = policy.plan(run.problem)
    truth = float(run.answers.mean())
    entries = []
    for k in budgets:
        found = plan.verdict(_only(run.answers, plan.sample(k)), k)
        success = np.nan if run.winner == 0 else float(found.winner == run.winner) + 0.5 * (found.winner == 0)
        entries.append(
            {
                "success": success,
                "distance_mae": abs(found.distance - truth),
                "bias": (found.distance - truth) * (run.winner or 1),
                "covered": float(found.low <= truth <= found.high),
                "width": found.high - found.low,
            }
        )
    return entries


def play_iteratively(
    policy: PairPolicy, bench: PairBench, pair: tuple[int, int], seed: int, share: float, rule: IterativeRule
) -> dict[str, float]:
    """Labels bought until the rule stops, and whether the answer was right, wrong or inconclusive."""
    run = PairRun.of(bench, pair, seed, share)
    policy.prepare(bench.past().without(pair))
    over = run_iteratively(policy.plan(run.problem), run.answers, rule)
    return {
        "labels": float(over.bought),
        "success": float(over.winner == run.winner and over.winner != 0),
        "error": float(over.winner not in (0, run.winner)),
        "inconclusive": float(over.winner == 0),
    }


def _only(answers: Floats, columns: NDArray[np.intp]) -> Floats:
    asked = np.full(len(answers), np.nan)
    asked[columns] = answers[columns]
    return asked


def check_budgets(budgets: Sequence[float]) -> list[int]:
    """Budgets as numbers of verdicts.

    Raises:
        UsageError: One is not a whole number.
    """
    if any(budget != int(budget) for budget in budgets):
        raise UsageError("budgets of the objective 'compare' are verdicts per pair, such as 5,10,20")
    return [int(budget) for budget in budgets]
