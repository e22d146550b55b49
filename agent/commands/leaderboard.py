"""`assay leaderboard`: who is how good, how sure that is, and what it cost."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agent import every_eval_ever, render
from agent import leaderboard as boards
from agent.commands._shared import JsonOption, console, database, say
from assay.settings import load_settings


class Format(StrEnum):
    """How to print it."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"
    HTML = "html"
    EEE = "eee"  # Every Eval Ever


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("leaderboard")(leaderboard)


def leaderboard(
    benchmark: Annotated[str, typer.Argument(help="Name of the benchmark.")],
    format_: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TABLE,
    out: Annotated[
        Path | None, typer.Option(help="Write it to this file (for eee: below this folder) instead.")
    ] = None,
    organization: Annotated[str, typer.Option(help="Who evaluated, for Every Eval Ever.")] = "unknown",
    json_: JsonOption = False,
) -> None:
    """Print a benchmark's leaderboard, or write it as static HTML, CSV, Markdown, JSON or Every Eval Ever.

    Example: assay leaderboard openllm --format html --out openllm.html
    """
    with database().read() as session:
        board = boards.build(session, benchmark, load_settings().cache_dir)
    kind = Format.JSON if json_ else format_
    if out is not None and kind is Format.EEE:
        say(f"{len(every_eval_ever.write_records(board, out, organization))} records below {out}")
    elif out is not None:
        out.write_text(_text(board, Format.HTML if kind is Format.TABLE else kind, organization), "utf-8")
        say(f"written to {out}")
    elif kind is Format.TABLE:
        console.print(render.as_table(board, console.width))
        for note in render.notes(board):
            console.print(note, style="dim", highlight=False)
    else:
        typer.echo(_text(board, kind, organization), nl=False)


def _text(board: boards.Leaderboard, kind: Format, organization: str) -> str:
    if kind is Format.CSV:
        return render.as_csv(board)
    if kind is Format.MD:
        return render.as_markdown(board)
    if kind is Format.HTML:
        from agent.web import static_page  # loads the web framework, which the other forms do not need

        return static_page(board)
    data = every_eval_ever.records(board, organization) if kind is Format.EEE else render.as_dict(board)
    return json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"
