"""`assay demo`: the main job, end to end, in about a minute."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from agent import render
from agent.commands._shared import JsonOption, console, print_json, print_rows
from agent.demo import DemoResult, run_demo
from agent.demo._formats import run_formats_demo
from agent.demo._run import Progress
from agent.leaderboard import Leaderboard

SHOWN_ROWS = 5


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo")(demo)


def demo(
    folder: Annotated[Path, typer.Option(help="Working folder; emptied first.")] = Path(".assay/demo"),
    seed: Annotated[int, typer.Option(help="Which simulated world.")] = 0,
    formats: Annotated[
        bool, typer.Option("--formats", help="Instead: one model by 50 formatting variants of a template.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Build a small benchmark, register a new model, and let the agent evaluate it under a budget.

    Example: assay demo
    """
    if formats:
        _formats(folder.absolute(), seed, json_)
        return
    if json_:
        result = run_demo(folder.absolute(), lambda _: None, seed=seed)
        print_json({**asdict(result), "board": render.as_dict(result.board)})
        return
    console.print(
        "[bold]Assay demo[/bold]: 60 known models, 360 prompts, one new model, a hard cap of $0.05\n"
    )
    result = run_demo(folder.absolute(), _teller(), seed=seed)
    _print_board(result)
    _print_summary(result)


def _formats(folder: Path, seed: int, json_: bool) -> None:
    """The demo of a score distribution."""
    if json_:
        print_json(asdict(run_formats_demo(folder, lambda _: None, seed=seed)))
        return
    console.print("[bold]Assay demo[/bold]: one model, 50 formatting variants of a template, 60 prompts\n")
    found = run_formats_demo(folder, _teller(), seed=seed)
    rows = [
        (f"{100 * at:g} %", f"{value:.3f}", f"{low:.3f} to {high:.3f}", f"{true:.3f}")
        for at, value, low, high, true in zip(
            found.at, found.estimated, found.low, found.high, found.true, strict=True
        )
    ]
    console.print()
    print_rows("quantiles", ("quantile", "estimate", "95 % interval", "true"), rows, empty="")
    console.print(
        f"calls bought: {found.calls} of the {found.full_calls} that all cells would take\n"
        f"money spent: ${found.spent_usd:.4f} of the cap of ${found.cap_usd:.2f}; {found.seconds:.1f} s",
        highlight=False,
    )


def _teller() -> Any:
    last_stage = ""

    def tell(progress: Progress) -> None:
        nonlocal last_stage
        if progress.score is not None and progress.low is not None and progress.high is not None:
            filled = round(20 * progress.bought / progress.total)
            bar = "█" * filled + "░" * (20 - filled)
            console.print(
                f"  {bar} {progress.bought:3d} of {progress.total} bought: estimate {progress.score:.3f}"
                f" ({progress.low:.3f} to {progress.high:.3f})",
                highlight=False,
            )
        elif progress.stage != last_stage:
            console.print(f"• {progress.stage}", highlight=False)
        last_stage = progress.stage

    return tell


def _print_board(result: DemoResult) -> None:
    """The rows around the new model."""
    at = next(i for i, row in enumerate(result.board.rows) if row.method == result.model)
    start = max(0, min(at - SHOWN_ROWS // 2, len(result.board.rows) - SHOWN_ROWS))
    near = Leaderboard(**{**vars(result.board), "rows": result.board.rows[start : start + SHOWN_ROWS]})
    console.print()
    console.print(render.as_table(near, console.width))


def _print_summary(result: DemoResult) -> None:
    inside = "inside" if result.low <= result.true_score <= result.high else "outside"
    saved = 1 - result.calls / result.full_calls
    lines = (
        f"[bold]{result.model}[/bold]: estimated {result.score:.3f}, 95 % interval"
        f" {result.low:.3f} to {result.high:.3f}",
        f"its true score on all {result.full_calls} prompts: {result.true_score:.3f} ({inside} the interval,"
        f" error {abs(result.score - result.true_score):.3f})",
        f"calls bought: {result.calls} of the {result.full_calls} that a full evaluation needs"
        f" ({saved:.0%} saved)",
        f"money spent: ${result.spent_usd:.4f} of the cap of ${result.cap_usd:.2f}",
        f"from file to final estimate: {result.seconds:.1f} s",
    )
    for line in lines:
        console.print(line, highlight=False)
