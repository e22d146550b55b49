"""`assay leaderboard`: who is how good, how sure that is, and what it cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from agent import leaderboard as boards
from agent import render
from agent.commands._shared import JsonOption, console, database, print_json
from assay.settings import load_settings


class Format(StrEnum):
    """How to print it."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("leaderboard")(leaderboard)


def leaderboard(
    benchmark: Annotated[str, typer.Argument(help="Name of the benchmark.")],
    format_: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TABLE,
    json_: JsonOption = False,
) -> None:
    """Print a benchmark's leaderboard.

    Example: assay leaderboard openllm --format md
    """
    with database().read() as session:
        board = boards.build(session, benchmark, load_settings().cache_dir)
    if json_ or format_ is Format.JSON:
        print_json(render.as_dict(board))
    elif format_ is Format.CSV:
        typer.echo(render.as_csv(board), nl=False)
    elif format_ is Format.MD:
        typer.echo(render.as_markdown(board), nl=False)
    else:
        console.print(render.as_table(board, console.width))
        for note in render.notes(board):
            console.print(note, style="dim", highlight=False)
