"""`assay db`: the database's schema."""

from __future__ import annotations

import typer

from agent.commands._shared import AssayGroup, say
from assay.settings import load_settings
from storage.database import Database

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="The database's schema.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="db")


@group.callback()
def _root() -> None:
    pass


@group.command("upgrade")
def upgrade() -> None:
    """Create the tables, or bring them to this program's version.

    Example: ASSAY_DATABASE_URL=postgresql://assay@db/assay assay db upgrade
    """
    database = Database(load_settings().database)
    database.upgrade()
    say(f"database {database.url.render_as_string(hide_password=True)} is up to date")
