"""Logs with the ids of what is being worked on, as text or as JSON lines.

`log_context(study_id=7)` adds the id to every line that is logged inside, in this thread or task and in what
it awaits. Lines hold ids and reasons, never prompts, outputs or secrets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

__all__ = ["JsonFormatter", "TextFormatter", "log_context", "setup_logging"]

_CONTEXT: ContextVar[dict[str, Any]] = ContextVar("assay_log_context", default={})  # noqa: B039

#: Libraries that say more than anybody reads.
CHATTY = ("httpx", "httpcore", "openai", "alembic", "asyncio")


@contextmanager
def log_context(**ids: object) -> Iterator[None]:
    """Add ids (study_id, job_id, event_id, version_id) to the lines logged inside."""
    token = _CONTEXT.set({**_CONTEXT.get(), **ids})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, message, ids."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s%(ids)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        ids = " ".join(f"{key}={value}" for key, value in _CONTEXT.get().items())
        record.ids = f" [{ids}]" if ids else ""
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_CONTEXT.get(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def setup_logging(form: str = "text", level: int | str = logging.INFO) -> None:
    """Log to standard error, unless this process logs already.

    Args:
        form: "text" or "json".
        level: Least level shown: a name in any case, or logging's number.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper() if isinstance(level, str) else level, handlers=[handler])
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
