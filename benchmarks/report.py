"""Write docs/benchmarks.md: one section per title, replaced when it is measured again."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["DOCUMENT", "markdown_table", "update_section"]

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
HEAD = "# Benchmarks\n\nEach table says how it was made; run the command to make it again.\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats are shown with three significant digits."""
    lines = [header, ["---"] * len(header), *([_shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def update_section(
    title: str,
    command: str,
    table: str,
    *,
    data: str,
    seeds: str = "none",
    notes: str = "",
    document: Path = DOCUMENT,
) -> str:
    """Write or replace one section of the document.

    Args:
        title: The section's heading; a section of that title is replaced, else this one is added at the end.
        command: What makes the table, as typed in the repository.
        table: Markdown, one table or several.
        data: What was measured on.
        seeds: The seeds used.
        notes: A remark below the table.
        document: The file.

    Returns:
        The section.
    """
    about = [
        f"Command: `{command}`",
        f"Data: {data}",
        f"Seeds: {seeds}",
        f"Commit: {_commit()}, measured {datetime.now(UTC):%Y-%m-%d}",
        f"Machine: {_machine()}",
    ]
    body = "\n".join(f"- {line}" for line in about)
    section = f"## {title}\n\n{table.strip()}\n\n" + (f"{notes.strip()}\n\n" if notes else "") + f"{body}\n"
    document.parent.mkdir(parents=True, exist_ok=True)
    old = document.read_text(encoding="utf-8") if document.exists() else HEAD
    document.write_text(_replace(old, title, section), encoding="utf-8")
    return section


def _replace(text: str, title: str, section: str) -> str:
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    titles = [part.splitlines()[0].removeprefix("## ").strip() for part in sections]
    if title in titles:
        sections[titles.index(title)] = section
    else:
        sections.append(section)
    return "\n\n".join(part.strip() for part in (head, *sections)) + "\n"


def _shown(cell: object) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _commit() -> str:
    commit = _git("rev-parse", "--short", "HEAD") or "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "*.py")
    return f"{commit} with local changes" if changed else commit


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}"
