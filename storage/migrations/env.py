"""Alembic's entry: runs migrations over the connection that `storage.migrations` hands in."""

from typing import Any, Literal

from alembic import context
from sqlmodel import SQLModel
from sqlmodel.sql.sqltypes import AutoString

from storage.tables import SafeText, UtcDateTime

OURS = {UtcDateTime: "sa.DateTime(timezone=True)", SafeText: "sa.Text()", AutoString: "sa.String()"}


def _render(kind: str, item: Any, _autogen: Any) -> str | Literal[False]:
    """Write types as SQLAlchemy's own, so that old migrations run whatever becomes of our classes."""
    return OURS.get(type(item), False) if kind == "type" else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    compare_type=True,
    render_item=_render,
)
with context.begin_transaction():
    context.run_migrations()
