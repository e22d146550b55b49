"""The work file of a backtest: what is finished survives a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from assay.errors import UsageError

if TYPE_CHECKING:
    from agent.backtest._engine import Task

__all__ = ["Journal"]


class Journal:
    """JSON lines: the settings first, then a record per finished task.

    A line cut short by a kill is dropped on reopening, and its task is run again.

    Args:
        folder: Where the file lies; made where absent.
        settings: The backtest's settings; a journal with others is refused.

    Raises:
        UsageError: The folder belongs to a backtest with other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "journal.jsonl"
        self._found: dict[str, dict[str, Any]] = {}
        lines = self._complete_lines()
        if not lines:
            self.path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        elif json.loads(lines[0]) != settings:
            raise UsageError(
                f"{self.path} belongs to a backtest with other settings",
                "repeat the command that began it, choose another --out, or delete that folder",
            )
        self._found = {entry["task"]: entry["record"] for entry in map(json.loads, lines[1:])}

    def __enter__(self) -> Self:
        self._file = self.path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def records(self, tasks: Sequence[Task]) -> dict[Task, dict[str, Any]]:
        """Records of the tasks that were finished before."""
        return {task: self._found[task.key] for task in tasks if task.key in self._found}

    def add(self, task: Task, record: dict[str, Any]) -> None:
        """Keep a finished task's record."""
        self._file.write(json.dumps({"task": task.key, "record": record}) + "\n")
        self._file.flush()

    def _complete_lines(self) -> list[str]:
        """The file's lines; what follows the last line break is cut off."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return whole.splitlines()
