"""`assay backtest`: replay policies and estimators on a complete score matrix."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent.backtest import BacktestSettings, run_backtest
from agent.backtest._report import markdown_table, save_distribution_plot, save_plot
from assay.errors import UsageError
from assay.matrix_folder import Weighting

__all__ = ["backtest", "register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("backtest")(backtest)


def backtest(
    matrix: Annotated[Path, typer.Option(help="Matrix folder; history = split train, test = split test.")],
    test_matrix: Annotated[
        Path | None, typer.Option(help="Folder with the test rows; all rows of --matrix are history then.")
    ] = None,
    objective: Annotated[str, typer.Option(help="estimate, best, compare or distribution.")] = "estimate",
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = "uniform",
    estimator: Annotated[
        str, typer.Option(help="Estimators, separated by commas; default by objective.")
    ] = "",
    budgets: Annotated[str, typer.Option(help="Budgets, separated by commas.")] = "25,50,100,200",
    seeds: Annotated[int, typer.Option(help="How many seeds (0, 1, ...).")] = 3,
    batch: Annotated[int, typer.Option(help="Cells asked for per decision.")] = 1,
    weighting: Annotated[
        str, typer.Option(help="Benchmark score: mean of dataset means, or plain mean over prompts (prompt).")
    ] = "dataset",
    random_splits: Annotated[int, typer.Option(help="Draw the history at random, this many times.")] = 0,
    train_share: Annotated[
        float, typer.Option(help="Share of rows that are history in random splits.")
    ] = 0.7,
    leave_one_out: Annotated[bool, typer.Option(help="Test each row against all others.")] = False,
    holdout_group: Annotated[
        str | None, typer.Option(help="Test on rows of a group, learn from the others: family=A,B.")
    ] = None,
    intervals: Annotated[
        str, typer.Option(help="posterior, or conformal: rescaled on held-out history.")
    ] = "posterior",
    encoder: Annotated[str, typer.Option(help="What embeds the prompts, where one looks.")] = "tfidf-svd",
    subset: Annotated[float, typer.Option(help="compare: share of the prompts taken as the test set.")] = 0.8,
    risk: Annotated[float | None, typer.Option(help="compare: stop each pair at this risk.")] = None,
    least_labels: Annotated[int, typer.Option(help="compare: first sample size with --risk.")] = 5,
    dataset: Annotated[
        str, typer.Option(help="Keep the prompts of these datasets (commas); default all.")
    ] = "",
    prompts: Annotated[int, typer.Option(help="Keep only that many prompts, drawn at random.")] = 0,
    test_rows: Annotated[int, typer.Option(help="Try only that many test rows, drawn at random.")] = 0,
    cold_datasets: Annotated[
        str, typer.Option(help="Datasets whose scores the history is not to hold, separated by commas.")
    ] = "",
    pooled: Annotated[
        int, typer.Option(help="So many test rows come first; their answers on cold prompts are pooled.")
    ] = 0,
    pooled_prompts: Annotated[int, typer.Option(help="Prompts that each of those acquires.")] = 100,
    cold_share: Annotated[
        float | None, typer.Option(help="Share drawn among prompts without history; default by weight.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Run policies that refuse because of the time.")] = False,
    policy_settings: Annotated[
        str, typer.Option(help='Constructor arguments of policies, JSON: {"ppo": {"updates": 4}}.')
    ] = "",
    jobs: Annotated[int, typer.Option(help="Processes, one thread each; 0 = one per core.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write settings and results as JSON; resumable.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw error against budget into a PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Replay policies and estimators on scores that are all known.

    An interrupted run with --out goes on where it stopped when the same command is given again.

    Example: assay backtest --matrix ./openllm --policy uniform,stratified --budgets 50,100 --seeds 3
    """
    settings = BacktestSettings(
        matrix=str(matrix),
        test_matrix=None if test_matrix is None else str(test_matrix),
        objective=objective,
        policies=_names(policy),
        estimators=_names(estimator) if estimator else (),
        budgets=_budgets(budgets),
        seeds=seeds,
        batch=batch,
        weighting=_weighting(weighting),
        random_splits=random_splits,
        train_share=train_share,
        leave_one_out=leave_one_out,
        holdout_group=holdout_group,
        intervals=_intervals(intervals),
        encoder=encoder,
        datasets=_names(dataset) if dataset else (),
        prompts=prompts,
        test_rows=test_rows,
        cold_datasets=_names(cold_datasets) if cold_datasets else (),
        pooled=pooled,
        pooled_prompts=pooled_prompts,
        cold_share=cold_share,
        subset=subset,
        risk=risk,
        least_labels=least_labels,
        force=force,
        policy_settings=_policy_settings(policy_settings),
    )
    document = _run(settings, jobs or len(os.sched_getaffinity(0)), out, quiet=as_json)
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        if objective == "distribution":
            save_distribution_plot(document["results"], plot)
        else:
            save_plot(document["results"], plot, _plotted(document["results"]))
    typer.echo(json.dumps(document) if as_json else markdown_table(document["results"]))


def _plotted(results: list[dict[str, Any]]) -> str:
    """The metric to draw: the objective's own."""
    return next((name for name in ("mae", "exact", "success") if name in results[0]), "mae")


def _run(settings: BacktestSettings, jobs: int, out: Path | None, *, quiet: bool) -> dict[str, Any]:
    work = None if out is None else out.with_name(out.name + ".work")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=None)

        def show(done: int, total: int, label: str) -> None:
            progress.update(bar, completed=done, total=total, description=label)

        return run_backtest(settings, jobs=jobs, work=work, on_progress=show)


def _policy_settings(given: str) -> dict[str, dict[str, Any]]:
    """JSON: policy name to settings."""
    try:
        found = json.loads(given or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        raise UsageError(
            f"--policy-settings is not JSON of settings by policy: {given}",
            'write it like {"ppo": {"updates": 4}}',
        )
    return found


def _names(listed: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
    if not names:
        raise UsageError(f"no name in '{listed}'", "give names separated by commas")
    return names


def _budgets(listed: str) -> tuple[float, ...]:
    try:
        numbers = {float(part) for part in listed.split(",") if part.strip()}
    except ValueError:
        raise UsageError(f"--budgets '{listed}' is no list of numbers", "such as --budgets 25,50") from None
    return tuple(int(number) if number == int(number) else number for number in sorted(numbers))


def _weighting(name: str) -> Weighting:
    if name not in ("dataset", "prompt"):
        raise UsageError(f"unknown weighting '{name}'", "known: dataset, prompt")
    return cast(Weighting, name)


def _intervals(name: str) -> Literal["posterior", "conformal"]:
    if name not in ("posterior", "conformal"):
        raise UsageError(f"unknown intervals '{name}'", "known: posterior, conformal")
    return cast(Literal["posterior", "conformal"], name)
