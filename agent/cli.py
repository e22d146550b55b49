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
from assay.errors import AssayError
from assay.logs import setup_logging
from assay.settings import load_settings

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
    form, level = _log_settings()
    setup_logging(form, logging.DEBUG if debug else level)


def _log_settings() -> tuple[str, str]:
    """The configured form and level; a broken configuration is the command's to complain about."""
    try:
        settings = load_settings()
    except AssayError:
        return "text", "INFO"
    return settings.log_format, settings.log_level


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
