"""What a study is after: how its rows are judged at each step, and when it has found out.

estimate: each method's benchmark score, until the interval is narrow enough.
best: the best of many methods, until one is probably enough the best.
distribution: quantiles of a model's scores over its templates, until all are known closely enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from agent.intervals import estimate_rows, unplaced_estimate
from agent.situation import Situation
from assay.errors import UsageError
from assay.plugins import Registry
from estimators.distribution import QUANTILES
from policies import Policy, SupportsRecommendation
from storage.tables import Estimate, Quantile

__all__ = ["OBJECTIVES", "BestObjective", "EstimateObjective", "Objective"]


class Objective(Protocol):
    """Judges a study's rows; keeps nothing between steps."""

    default_policy: str | None

    def check(self, policy: type[Policy], methods: int) -> None:
        """Raise UsageError where the policy or the number of methods does not fit."""
        ...

    def judge(self, situation: Situation) -> list[Estimate]:
        """One estimate per method; study, method and cost are left for the caller to fill in."""
        ...

    def quantiles(self, situation: Situation) -> list[Quantile]:
        """Quantiles over the study's rows, where the objective is about them; study and step are
        filled in.
        """
        ...

    def reached(
        self, situation: Situation, rows: Sequence[Estimate], quantiles: Sequence[Quantile]
    ) -> str | None:
        """Why the study has found out what it was after, or None."""
        ...


class EstimateObjective:
    """A method's benchmark score, from acquired and predicted scores."""

    default_policy: str | None = None  # the configured one

    def check(self, policy: type[Policy], methods: int) -> None:
        """See `Objective.check`."""
        if methods != 1:
            raise UsageError(
                "a study of the objective 'estimate' has one method", "create one study per method"
            )

    def judge(self, situation: Situation) -> list[Estimate]:
        """See `Objective.judge`."""
        study = situation.study
        return estimate_rows(situation.estimator, situation.state.scores, study.level, situation.intervals)

    def quantiles(self, situation: Situation) -> list[Quantile]:
        """See `Objective.quantiles`."""
        return []

    def reached(
        self, situation: Situation, rows: Sequence[Estimate], quantiles: Sequence[Quantile]
    ) -> str | None:
        """See `Objective.reached`."""
        wanted = situation.study.until_width
        widest = max(row.high - row.low for row in rows)
        if wanted is None or not situation.bought or widest > wanted:
            return None
        return f"interval width {widest:.4f} is within {wanted:g}"


class BestObjective:
    """The best of some methods, judged by the policy that chooses among them."""

    default_policy: str | None = "ucb-e"

    def check(self, policy: type[Policy], methods: int) -> None:
        """See `Objective.check`."""
        if methods < 2:
            raise UsageError("the objective 'best' needs at least two methods", "name them with --methods")
        if not issubclass_of_recommending(policy):
            raise UsageError(
                f"policy '{policy.name}' cannot say which method is the best",
                "use ucb-e, ucb-e-lrf, top-two or another best-arm policy",
            )

    def judge(self, situation: Situation) -> list[Estimate]:
        """See `Objective.judge`."""
        assert isinstance(situation.policy, SupportsRecommendation)
        believed = situation.policy.recommend(situation.state)
        half = float(norm.ppf(0.5 + situation.study.level / 2)) * believed.std
        known = (~np.isnan(situation.state.scores)).sum(axis=1)
        return [
            unplaced_estimate(
                float(believed.mean[i]),
                float(believed.std[i]),
                (float(believed.mean[i] - half[i]), float(believed.mean[i] + half[i])),
                level=situation.study.level,
                kind=believed.kind,
                acquired=int(known[i]),
                total=situation.columns.n_prompts,
                probability_best=float(believed.probability_best[i]),
            )
            for i in range(len(situation.methods))
        ]

    def quantiles(self, situation: Situation) -> list[Quantile]:
        """See `Objective.quantiles`."""
        return []

    def reached(
        self, situation: Situation, rows: Sequence[Estimate], quantiles: Sequence[Quantile]
    ) -> str | None:
        """See `Objective.reached`."""
        wanted = situation.study.until_confidence
        best = max(range(len(rows)), key=lambda i: rows[i].probability_best or 0.0)
        chance = rows[best].probability_best or 0.0
        if wanted is None or not situation.bought or chance < wanted:
            return None
        return f"{situation.methods[best].name} is the best with probability {chance:.3f}"


class DistributionObjective:
    """Quantiles of the scores of some methods, usually one model's templates.

    What a step draws depends on the study's seed and step alone.
    """

    default_policy: str | None = None  # by the size of the history

    def check(self, policy: type[Policy], methods: int) -> None:
        """See `Objective.check`."""
        if methods < 2:
            raise UsageError(
                "the objective 'distribution' needs at least two templates",
                "name them with --templates, such as --templates 'short-*'",
            )

    def judge(self, situation: Situation) -> list[Estimate]:
        """See `Objective.judge`."""
        found = situation.distribution
        half = float(norm.ppf(0.5 + situation.study.level / 2))
        known = (~np.isnan(situation.state.scores)).sum(axis=1)
        kind = situation.estimator.interval_kind
        return [
            unplaced_estimate(
                float(mean),
                float(std),
                (float(mean - half * std), float(mean + half * std)),
                level=situation.study.level,
                kind="complete" if known[i] == situation.columns.n_prompts else kind,
                acquired=int(known[i]),
                total=situation.columns.n_prompts,
            )
            for i, (mean, std) in enumerate(zip(found.scores, found.std, strict=True))
        ]

    def quantiles(self, situation: Situation) -> list[Quantile]:
        """See `Objective.quantiles`."""
        at = sorted(situation.study.quantiles) or list(QUANTILES)
        found, scores = situation.distribution, situation.state.scores
        factor, kind = _stretch(situation, at)
        low, high = found.intervals(at, situation.study.level, factor)
        return [
            Quantile(
                study_id=situation.study_id,
                benchmark_id=situation.columns.benchmark_id,
                model_id=situation.methods[0].model_id,
                step=0,
                at=q,
                value=float(value),
                low=float(low[i]),
                high=float(high[i]),
                level=situation.study.level,
                interval_kind=kind,
                rows=len(scores),
                acquired=int((~np.isnan(scores)).sum()),
                total=scores.size,
            )
            for i, (q, value) in enumerate(zip(at, found.quantiles(at), strict=True))
        ]

    def reached(
        self, situation: Situation, rows: Sequence[Estimate], quantiles: Sequence[Quantile]
    ) -> str | None:
        """See `Objective.reached`."""
        wanted = situation.study.until_width
        widest = max(quantile.high - quantile.low for quantile in quantiles)
        if wanted is None or not situation.bought or widest > wanted:
            return None
        return f"the widest interval of a quantile, {widest:.4f}, is within {wanted:g}"


def _stretch(situation: Situation, at: Sequence[float]) -> tuple[NDArray[np.float64] | float, str]:
    """What the quantiles' intervals are stretched by, and the kind of interval that this makes."""
    scores, known = situation.state.scores, situation.quantile_factors
    acquired = int((~np.isnan(scores)).sum())
    if acquired == scores.size:
        return 1.0, "complete"
    if known is None or not np.isclose(known.levels, situation.study.level).any():
        return 1.0, situation.estimator.interval_kind
    factor = known.factors(at, situation.study.level, len(scores), acquired / len(scores))
    return factor, "rehearsed"


def issubclass_of_recommending(policy: type[Policy]) -> bool:
    """Whether the policy's objects can recommend (a protocol with attributes cannot be asked of a class)."""
    return callable(getattr(policy, "recommend", None))


OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    "assay.objectives",
    {
        "best": "agent.objectives:BestObjective",
        "compare": "agent.pairwise:CompareObjective",
        "distribution": "agent.objectives:DistributionObjective",
        "estimate": "agent.objectives:EstimateObjective",
    },
)
