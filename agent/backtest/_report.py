"""Results of a backtest as a Markdown table and as a plot of error against budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["markdown_table", "save_distribution_plot", "save_plot"]

KEYS = ("policy", "estimator", "budget", "seed")
Entry = dict[str, Any]


def markdown_table(results: Sequence[Entry], metrics: Sequence[str] | None = None) -> str:
    """One line per policy, estimator and budget; each metric as its mean over the seeds."""
    if not results:
        return "no results"
    names = list(metrics) if metrics is not None else _metrics(results[0])
    lines = ["| policy | estimator | budget | " + " | ".join(names) + " |"]
    lines.append("| --- | --- | ---: |" + " ---: |" * len(names))
    for (policy, estimator, budget), group in _groups(results).items():
        cells = " | ".join(_cell(_mean([entry[name] for entry in group])) for name in names)
        lines.append(f"| {policy} | {estimator} | {budget:g} | {cells} |")
    return "\n".join(lines)


def save_plot(results: Sequence[Entry], path: Path, metric: str = "mae") -> None:
    """Draw a metric against the budget: a line per policy and estimator, a band over the seeds' range."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.5), layout="constrained")
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    for (policy, estimator, budget), group in _groups(results).items():
        values = [entry[metric] for entry in group if entry[metric] is not None]
        lines.setdefault(f"{policy} + {estimator}", []).append((budget, values))
    for label, points in lines.items():
        kept = [(budget, values) for budget, values in points if values]
        budgets = [budget for budget, _ in kept]
        (drawn,) = axes.plot(budgets, [np.mean(v) for _, v in kept], marker="o", ms=4, label=label)
        axes.fill_between(
            budgets,
            [min(v) for _, v in kept],
            [max(v) for _, v in kept],
            alpha=0.2,
            color=drawn.get_color(),
            linewidth=0,
        )
    axes.set_xscale("log")
    axes.set_xlabel("budget")
    axes.set_ylabel(metric)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save_distribution_plot(results: Sequence[Entry], path: Path) -> None:
    """Draw the true cumulative distribution of the rows' scores and the estimated ones of seed 0, by
    budget.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    budgets = sorted({entry["budget"] for entry in results})
    figure, grid = plt.subplots(
        1, len(budgets), figsize=(3.2 * len(budgets), 3.4), layout="constrained", sharey=True, squeeze=False
    )
    for axes, budget in zip(grid[0], budgets, strict=True):
        mine = [entry for entry in results if entry["budget"] == budget and entry["seed"] == 0]
        _step(axes, mine[0]["true"], "true", color="black", lw=2)
        for entry in mine:
            _step(axes, entry["estimated"], f"{entry['policy']} + {entry['estimator']}", lw=1.2)
        axes.set_title(f"{budget} cells", fontsize=10)
        axes.set_xlabel("score")
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("share of rows at or below")
    grid[0][-1].legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _step(axes: Any, scores: Sequence[float], label: str, **style: Any) -> None:
    share = (np.arange(len(scores)) + 1) / len(scores)
    axes.step(scores, share, where="post", label=label, **style)


def _metrics(entry: Entry) -> list[str]:
    """Names of the entry's numbers."""
    return [name for name, value in entry.items() if name not in KEYS and not isinstance(value, list)]


def _groups(results: Sequence[Entry]) -> dict[tuple[str, str, float], list[Entry]]:
    groups: dict[tuple[str, str, float], list[Entry]] = {}
    for entry in results:
        groups.setdefault((entry["policy"], entry["estimator"], entry["budget"]), []).append(entry)
    return groups


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"
