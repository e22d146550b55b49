"""The objective "best": how often a policy names the best of R methods, by the share of cells bought.

Shapes: R methods, N prompts. One run replays one policy with one seed on a matrix whose scores are all
known; budgets are shares of all its cells.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from assay.errors import BadInputError, UsageError
from assay.matrix import ScoreMatrix
from estimators import Estimator
from policies import Policy, PolicyState, Selection, SupportsRecommendation, SupportsReplay

__all__ = ["BestTruth", "best_metrics", "mcnemar_set", "replay_best", "save_best_plot"]

EPSILONS = {"within_0_001": 0.001, "within_0_01": 0.01}
LEVELS = {"mcnemar_0_01": 0.01, "mcnemar_0_1": 0.1}
TIE = 1e-9


@dataclass(frozen=True)
class BestTruth:
    """What is true of the methods of a complete matrix.

    Attributes:
        mean: (R,) benchmark score of each method; missing cells leave their weight to the others.
        sets: By metric name, (R,) True for the methods that count as the best.
    """

    mean: NDArray[np.float64]
    sets: dict[str, NDArray[np.bool_]]

    @classmethod
    def of(cls, matrix: ScoreMatrix) -> BestTruth:
        """Judge the methods by all their scores."""
        values = matrix.values.astype(np.float64)
        weights = np.where(np.isnan(values), 0.0, matrix.weights)
        total = weights.sum(axis=1)
        if (total == 0).any():
            raise BadInputError("a method has no scores at all", "leave it out of the backtest")
        mean = (np.nan_to_num(values) * weights).sum(axis=1) / total
        gap = mean.max() - mean
        best = int(mean.argmax())
        sets = {"exact": gap <= TIE}
        sets |= {name: gap <= epsilon + TIE for name, epsilon in EPSILONS.items()}
        sets |= {name: mcnemar_set(values, best, level) for name, level in LEVELS.items()}
        return cls(mean, sets)


def mcnemar_set(values: NDArray[np.float64], best: int, level: float) -> NDArray[np.bool_]:
    """Methods that McNemar's test does not tell from the best one (Zhou et al., section 4.2).

    Scores are taken as passed above 0.5. The exact two-sided test is used: among the prompts that only one
    of the two passes, each passes half under the null hypothesis.

    Args:
        values: (R, N) scores; prompts missing for either method are left out.
        best: The best method's row.
        level: Significance level p.

    Returns:
        (R,) True where the hypothesis of equality is not rejected.
    """
    passed = values > 0.5
    both = ~np.isnan(values) & ~np.isnan(values[best])
    wins = (passed & ~passed[best] & both).sum(axis=1)
    losses = (~passed & passed[best] & both).sum(axis=1)
    p_value = np.minimum(1.0, 2.0 * binom.cdf(np.minimum(wins, losses), wins + losses, 0.5))
    alike: NDArray[np.bool_] = p_value >= level
    return alike


def best_metrics(believed: NDArray[np.float64], truth: BestTruth) -> dict[str, float]:
    """Metrics of one recommendation.

    Args:
        believed: (R,) means that the policy believes in; the largest is the method it names.
        truth: The true scores.

    Returns:
        exact, within_* and mcnemar_* (1.0 or 0.0), ndcg_10, and regret: how far the named method's score is
        below the best one's.
    """
    named = int(believed.argmax())
    metrics = {name: float(members[named]) for name, members in truth.sets.items()}
    metrics["ndcg_10"] = _ndcg(believed, truth.mean, 10)
    metrics["regret"] = float(truth.mean.max() - truth.mean[named])
    return metrics


def _ndcg(believed: NDArray[np.float64], truth: NDArray[np.float64], k: int) -> float:
    """Normalised discounted cumulative gain of the top k; the true first gains k, the second k - 1, ..."""
    k = min(k, len(truth))
    gain = np.zeros(len(truth))
    gain[np.argsort(-truth, kind="stable")[:k]] = np.arange(k, 0, -1)
    discount = 1.0 / np.log2(np.arange(k) + 2.0)
    predicted = gain[np.argsort(-believed, kind="stable")[:k]]
    return float((predicted * discount).sum() / (np.arange(k, 0, -1) * discount).sum())


def replay_best(
    policy: Policy,
    matrix: ScoreMatrix,
    truth: BestTruth,
    *,
    shares: Sequence[float],
    seed: int,
    estimator: Estimator | None = None,
    cost: NDArray[np.float64] | None = None,
    batch: int | None = None,
    row_features: NDArray[np.float64] | None = None,
) -> Iterator[dict[str, Any]]:
    """Replay one study of the objective "best".

    Args:
        policy: Prepared policy that supports recommendations.
        matrix: (R, N) all scores; missing cells cannot be bought.
        truth: `BestTruth.of(matrix)`.
        shares: Budgets as shares of all cells, ascending, in (0, 1].
        seed: Seed of the study.
        estimator: Fitted estimator, or None.
        cost: Expected cost of each cell, broadcast to (R, N); default 1 each.
        batch: Cells per decision; default the policy's own.
        row_features: (R, p) covariates of the rows' templates, or None.

    Yields:
        Per share: budget, the metrics, probability_best of the named method, used (share of cells bought:
        less than the budget where the policy stopped) and algorithm_seconds (CPU seconds of all decisions
        up to there and of one recommendation).

    Raises:
        UsageError: The policy cannot recommend, or a share is out of range.
    """
    if not isinstance(policy, SupportsRecommendation):
        raise UsageError(f"policy '{policy.name}' cannot name a best method", "use ucb-e or top-two")
    if any(not 0 < share <= 1 for share in shares) or sorted(shares) != list(shares):
        raise UsageError("budgets of the objective 'best' are ascending shares of all cells, in (0, 1]")
    run = None
    for share in shares:
        cells = round(share * matrix.values.size)
        if run is None or policy.uses_total:  # its choices depend on the budget: each has a run of its own
            run = _Run(policy, matrix, estimator, cost, seed, batch or policy.batch, cells, row_features)
        run.advance(cells)
        start = time.process_time()
        opinion = policy.recommend(run.state)
        seconds = run.seconds + time.process_time() - start
        yield {
            "budget": share,
            **best_metrics(opinion.mean, truth),
            "probability_best": float(opinion.probability_best[opinion.best]),
            "used": run.acquired / matrix.values.size,
            "algorithm_seconds": seconds,
        }


class _Run:
    """A study under way: what was acquired, and how long the policy took."""

    def __init__(
        self,
        policy: Policy,
        matrix: ScoreMatrix,
        estimator: Estimator | None,
        cost: NDArray[np.float64] | None,
        seed: int,
        batch: int,
        total: int,
        row_features: NDArray[np.float64] | None,
    ) -> None:
        self.policy, self.batch = policy, batch
        self.answers = matrix.values.astype(np.float64)
        self.acquired, self.seconds, self.stopped = 0, 0.0, False
        shape = self.answers.shape
        self.state = PolicyState(
            scores=np.full(shape, np.nan),
            pending=np.zeros(shape, dtype=bool),
            available=~np.isnan(self.answers),
            cost=np.ones(shape) if cost is None else np.broadcast_to(cost, shape).astype(np.float64),
            weights=matrix.weights,
            dataset_index=matrix.dataset_index,
            estimator=estimator,
            rng=np.random.default_rng(seed),
            total=total if policy.uses_total else 0,
            row_features=row_features,
        )

    def advance(self, cells: int) -> None:
        """Acquire until `cells` are known, nothing is left or the policy stops."""
        while self.acquired < cells and not self.stopped:
            start = time.process_time()
            chosen = self._choose(cells - self.acquired)
            self.seconds += time.process_time() - start
            self.state.scores[chosen.rows, chosen.columns] = self.answers[chosen.rows, chosen.columns]
            self.acquired += len(chosen)
            self.stopped = len(chosen) == 0

    def _choose(self, left: int) -> Selection:
        policy = self.policy
        if isinstance(policy, SupportsReplay) and self.batch == policy.batch:
            return policy.replay(self.state, self.answers, left)
        return policy.select(self.state, min(self.batch, left))


def save_best_plot(results: Sequence[dict[str, Any]], path: Path, metric: str = "exact") -> None:
    """Draw a metric (mean over the seeds, with its standard error as a band) against the budget."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.5), layout="constrained")
    for policy in dict.fromkeys(str(entry["policy"]) for entry in results):
        mine = [entry for entry in results if entry["policy"] == policy]
        budgets = sorted({float(entry["budget"]) for entry in mine})
        groups = [np.array([e[metric] for e in mine if e["budget"] == b], dtype=float) for b in budgets]
        mean = np.array([group.mean() for group in groups])
        error = np.array([group.std() / np.sqrt(len(group)) for group in groups])
        percent = [100.0 * budget for budget in budgets]
        (drawn,) = axes.plot(percent, mean, marker="o", ms=4, label=policy)
        axes.fill_between(percent, mean - error, mean + error, alpha=0.2, color=drawn.get_color(), lw=0)
    axes.set_xlabel("share of cells evaluated, %")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
