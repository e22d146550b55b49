"""`assay notify`: targets, what was sent, and a test message."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agent.commands._shared import AssayGroup, JsonOption, database, print_json, print_rows, say
from agent.notify import Message, make_notifier
from agent.text import ago
from assay.errors import NotFoundError
from assay.settings import load_settings
from assay.specs import NotifySpec
from storage import outbox
from storage.tables import Notification, utc_now

group = typer.Typer(cls=AssayGroup, no_args_is_help=True, help="Notifications: webhooks, Slack, e-mail.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(group, name="notify")


@group.command("test")
def test(target: Annotated[str, typer.Argument(help="Name of the target in assay.toml.")]) -> None:
    """Send a test message to a target, now.

    Example: assay notify test ops
    """
    spec = _target(target)
    notifier = make_notifier(spec)
    where = notifier.check()
    at = utc_now().isoformat()
    notifier.send(Message(f"test-{at}", "test", "A test by Assay", "Messages arrive here.", {}, at))
    say(f"sent to {where}")


@group.command("list")
def list_(json_: JsonOption = False) -> None:
    """Show the newest notifications and what became of them.

    Example: assay notify list
    """
    with database().read() as session:
        found = [_facts(row) for row in outbox.recent(session)]
    if json_:
        print_json(found)
        return
    rows = [
        (
            f["id"],
            f["target"],
            f["title"],
            f["state"],
            f["attempts"],
            ago(f["created_at"], utc_now()),
            f["error"],
        )
        for f in found
    ]
    columns = ("id", "target", "message", "state", "tries", "age", "error")
    print_rows("notifications", columns, rows, empty="name targets in assay.toml, see docs/notify.md")


@group.command("retry")
def retry() -> None:
    """Send once more what was given up.

    Example: assay notify retry
    """
    with database().begin() as session:
        count = outbox.requeue_failed(session)
    say(f"{count} notifications are sent once more")


def _target(name: str) -> NotifySpec:
    targets = {spec.name: spec for spec in load_settings().notify}
    if name not in targets:
        known = ", ".join(targets) or "none; add a [[notify]] entry to assay.toml"
        raise NotFoundError(f"there is no notify target '{name}'", f"known: {known}")
    return targets[name]


def _facts(row: Notification) -> dict[str, Any]:
    return {
        "id": row.id,
        "target": row.target,
        "kind": row.message.get("kind"),
        "title": row.message.get("title"),
        "state": row.state,
        "attempts": row.attempts,
        "error": row.error,
        "created_at": row.created_at,
        "sent_at": row.sent_at,
    }
