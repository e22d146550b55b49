"""`assay token`: make, list and revoke tokens of the REST API."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.text import ago
from storage import tokens
from storage.tables import ApiToken, utc_now

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Tokens: rights to use the REST API.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="token")


@group.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use it.")],
    scope: Annotated[
        str, typer.Option(help="read: look; run: spend (models, studies, imports); admin: caps, champions.")
    ] = "read",
    days: Annotated[int | None, typer.Option(min=1, max=36500, help="Days until it expires.")] = None,
    json_: JsonOption = False,
) -> None:
    """Make a token and print it: this once, since only its hash is kept.

    Example: assay token create ci --scope run --days 90
    """
    with database().begin() as session:
        lifetime = None if days is None else timedelta(days=days)
        token, secret = tokens.create(session, name, scope, lifetime=lifetime)
    if json_:
        print_json({**_shown(token), "token": secret})
        return
    say(secret)
    say(f"token '{name}' may {scope}; keep it now, it is not shown again")


@group.command("list")
def list_(json_: JsonOption = False) -> None:
    """List tokens (never their secrets).

    Example: assay token list
    """
    with database().read() as session:
        found = tokens.list_all(session)
    if json_:
        print_json([_shown(token) for token in found])
        return
    now = utc_now()
    rows = [
        (t.name, t.key, t.scope, _state(t), ago(t.created_at, now), ago(t.last_used_at, now)) for t in found
    ]
    columns = ("token", "id", "scope", "state", "made", "last used")
    print_rows("tokens", columns, rows, empty="assay token create NAME --scope read")


@group.command("revoke")
def revoke(name: str) -> None:
    """Make a token useless from now on.

    Example: assay token revoke ci
    """
    with database().begin() as session:
        tokens.revoke(session, name)
    say(f"token '{name}' is revoked")


def _state(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= utc_now() else "valid"


def _shown(token: ApiToken) -> dict[str, Any]:
    return {
        "name": token.name,
        "id": token.key,
        "scope": token.scope,
        "state": _state(token),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
    }
