"""Two methods side by side: the difference of their scores, paired where both answered the same prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from sqlmodel import Session

from agent.leaderboard import Leaderboard, LeaderboardRow
from assay.errors import UsageError
from storage.catalog import find_benchmark, find_method
from storage.matrices import BenchmarkColumns, load_columns, load_rows

__all__ = ["Comparison", "DatasetDifference", "Difference", "compare", "paired_difference"]


@dataclass(frozen=True)
class Difference:
    """A difference of two scores, A - B, with its interval.

    Attributes:
        value: The difference.
        std: Its standard deviation; 0 where it is exact.
        low: Lower end of the normal interval.
        high: Upper end.
        probability: That A is better.
    """

    value: float
    std: float
    low: float
    high: float
    probability: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class DatasetDifference:
    """A dataset's prompts that both methods have a score for."""

    dataset: str
    common: int
    prompts: int
    mean_a: float | None
    mean_b: float | None
    wins_a: int
    wins_b: int
    ties: int


@dataclass(frozen=True)
class Comparison:
    """Methods A and B on one benchmark.

    Attributes:
        benchmark: The benchmark's name.
        a: A's row of the leaderboard, None where it has none.
        b: B's row.
        level: Level of the intervals.
        estimated: Difference of the leaderboard's scores, estimates taken as independent; None where a
            method has none.
        paired: Difference on the common prompts, for this benchmark; None without common prompts.
        sampled: The same where the prompts are taken for a sample of many more such prompts.
        common: Number of common prompts.
        prompts: Number of the benchmark's prompts.
        datasets: By dataset.
    """

    benchmark: str
    a: LeaderboardRow | None
    b: LeaderboardRow | None
    level: float
    estimated: Difference | None
    paired: Difference | None
    sampled: Difference | None
    common: int
    prompts: int
    datasets: tuple[DatasetDifference, ...]


def compare(session: Session, board: Leaderboard, a: str, b: str) -> Comparison:
    """Compare two methods by name.

    Raises:
        UsageError: A method is unknown, or both are the same.
    """
    if a == b:
        raise UsageError("a model cannot be compared with itself", "choose two different ones")
    benchmark = find_benchmark(session, board.benchmark)
    pks = np.array([find_method(session, name).id for name in (a, b)], dtype=np.int64)
    columns = load_columns(session, benchmark)
    first, second = load_rows(session, columns, pks)
    rows = {row.method: row for row in board.rows}
    return Comparison(
        benchmark=board.benchmark,
        a=rows.get(a),
        b=rows.get(b),
        level=board.level,
        estimated=_estimated(rows.get(a), rows.get(b), board.level),
        paired=paired_difference(first, second, columns.weights, columns.dataset_index, board.level),
        sampled=paired_difference(
            first, second, columns.weights, columns.dataset_index, board.level, finite=False
        ),
        common=int((~np.isnan(first) & ~np.isnan(second)).sum()),
        prompts=columns.n_prompts,
        datasets=tuple(_by_dataset(columns, first, second)),
    )


def _estimated(a: LeaderboardRow | None, b: LeaderboardRow | None, level: float) -> Difference | None:
    if a is None or b is None:
        return None
    return _difference(a.score - b.score, float(np.hypot(a.spread, b.spread)), level)


def _difference(value: float, std: float, level: float) -> Difference:
    reach = float(ndtri(0.5 + level / 2)) * std
    certain = 0.5 if abs(value) < 1e-12 else float(value > 0)
    probability = float(ndtr(value / std)) if std > 0 else certain
    return Difference(value, std, max(-1.0, value - reach), min(1.0, value + reach), probability)


def paired_difference(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    weights: NDArray[np.float64],
    dataset_index: NDArray[np.intp],
    level: float,
    *,
    finite: bool = True,
) -> Difference | None:
    """Stratified estimate of the weighted mean of a - b from the prompts that have both scores.

    Each dataset's mean difference counts by the dataset's weight (weights of datasets without a common prompt
    are left out). With `finite`, the standard error has the finite-population correction: it is 0 where no
    prompt is missing (Cochran, Sampling Techniques, 1977, equation 5.13). Without it, the prompts stand for
    infinitely many such prompts (Miller, Adding Error Bars to Evals, arXiv 2411.00640, section 4).

    Args:
        a: (N,) scores of A, NaN = missing.
        b: (N,) scores of B.
        weights: (N,) prompt weights.
        dataset_index: (N,) dataset of each prompt.
        level: Level of the interval.
        finite: Whether the benchmark's own prompts are all that counts.
    """
    difference = a - b
    both = ~np.isnan(difference) & (weights > 0)
    if not both.any():
        return None
    pooled = _pooled_variance(difference, both, dataset_index)
    total, value, variance = 0.0, 0.0, 0.0
    for d in np.unique(dataset_index[both]):
        inside = dataset_index == d
        share, here = float(weights[inside].sum()), difference[inside & both]
        spread = float(here.var(ddof=1)) if len(here) > 1 else pooled
        open_share = 1.0 - len(here) / int((inside & (weights > 0)).sum()) if finite else 1.0
        total += share
        value += share * float(here.mean())
        variance += share**2 * spread / len(here) * open_share
    return _difference(value / total, float(np.sqrt(variance)) / total, level)


def _pooled_variance(
    difference: NDArray[np.float64], both: NDArray[np.bool_], dataset_index: NDArray[np.intp]
) -> float:
    """Variance within datasets, for those with a single common prompt; 1 where nothing can be said."""
    groups = [difference[both & (dataset_index == d)] for d in np.unique(dataset_index[both])]
    degrees = sum(len(group) - 1 for group in groups)
    return sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / degrees if degrees else 1.0


def _by_dataset(
    columns: BenchmarkColumns, a: NDArray[np.float64], b: NDArray[np.float64]
) -> list[DatasetDifference]:
    lines = []
    for d, name in enumerate(columns.datasets):
        inside = columns.dataset_index == d
        both = inside & ~np.isnan(a) & ~np.isnan(b)
        x, y = a[both], b[both]
        lines.append(
            DatasetDifference(
                dataset=name,
                common=len(x),
                prompts=int(inside.sum()),
                mean_a=float(x.mean()) if len(x) else None,
                mean_b=float(y.mean()) if len(x) else None,
                wins_a=int((x > y).sum()),
                wins_b=int((x < y).sum()),
                ties=int((x == y).sum()),
            )
        )
    return lines
