"""What all commands share: options, output as table or JSON, errors as one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from agent.opening import open_database
from agent.text import printable
from assay.errors import AssayError
from assay.settings import load_settings
from storage.database import Database

__all__ = ["AssayGroup", "JsonOption", "console", "database", "print_json", "print_rows", "say"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

console = Console()
errors = Console(stderr=True)


class AssayGroup(TyperGroup):
    """Turns AssayError into one line on standard error and the exit code that belongs to it."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # typer's own Context is a subclass
        """Run the command."""
        try:
            return super().invoke(ctx)
        except AssayError as error:
            if _debug(ctx):
                raise
            _complain(error.message, error.hint)
            raise typer.Exit(error.exit_code) from None
        except Exception as error:
            if _debug(ctx) or _belongs_to_typer(error):
                raise
            message = " ".join(str(error).split())
            _complain(
                f"unexpected {type(error).__name__}: {message}", "see where with: assay --debug COMMAND"
            )
            raise typer.Exit(1) from None


def _debug(ctx: typer.Context) -> bool:
    return bool(ctx.find_root().params.get("debug"))


def _belongs_to_typer(error: Exception) -> bool:
    """Exits and wrong use are shown by typer itself."""
    return isinstance(error, (typer.Exit, typer.Abort)) or hasattr(error, "exit_code")


def _complain(message: str, hint: str) -> None:
    errors.print(f"[red]error:[/red] {_plain(message)}", highlight=False, soft_wrap=True)
    if hint:
        errors.print(f"  {_plain(hint)}", highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    """Text without control characters or markup, on one line."""
    return escape(printable(text, longest=2000))


def database() -> Database:
    """The configured database, checked."""
    return open_database(load_settings())


def print_json(data: Any) -> None:
    """Print data as JSON on standard output."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print a table; `empty` says what to do where there is nothing to show."""
    shown_rows = [[_plain(str(cell)) for cell in row] for row in rows]
    if not shown_rows:
        console.print(f"no {title} yet: {empty}", highlight=False)
        return
    table = Table(title=None, header_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in shown_rows:
        table.add_row(*row)
    console.print(table)


def say(text: str) -> None:
    """Print one line."""
    console.print(_plain(text), highlight=False, soft_wrap=True)
