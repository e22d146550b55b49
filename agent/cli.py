"""The `assay` command."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from agent.commands import (
    backtest,
    benchmark,
    budget,
    db,
    demo,
    doctor,
    estimators,
    jobs,
    leaderboard,
    model,
    notify,
    plan,
    run,
    study,
    template,
    token,
)
from agent.commands._shared import AssayGroup
from assay import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="assay",
    cls=AssayGroup,
    help="Keep LLM leaderboards true at a fraction of their cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Configure logging for all commands."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for chatty in ("httpx", "httpcore", "openai", "alembic", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


for module in (
    demo,
    run,
    db,
    doctor,
    model,
    benchmark,
    study,
    jobs,
    budget,
    plan,
    leaderboard,
    estimators,
    backtest,
    template,
    token,
    notify,
):
    module.register(app)


def main() -> None:
    """Entry point."""
    app()
