"""Watching a folder of model files and a folder of prompt files.

A file is read once it has stayed the same from one look to the next, so that one that is still being written
is waited for. A file that cannot be taken is noted with its reason (event watcher.error) and looked at again
when it changes. What was seen is remembered in the database, so a restart repeats nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sqlmodel import Session, select

from agent.registration import PROMPT_SUFFIXES, add_prompt_file, check_model
from assay.errors import AssayError, StorageError, UsageError
from assay.specs import parse_model, read_mapping
from storage import catalog
from storage.database import Database
from storage.events import emit
from storage.tables import WatchedItem, utc_now

__all__ = ["FolderWatcher", "model_folder", "prompt_folder"]

log = logging.getLogger(__name__)

MODEL_SUFFIXES = (".toml", ".yaml", ".yml", ".json")


class FolderWatcher:
    """Watches the files of a folder.

    Args:
        name: Name under which it remembers what it saw.
        folder: The folder; it may appear later.
        suffixes: File endings that it looks at.
        take: Stores one file's content in a writing session; raises AssayError where it cannot.
    """

    def __init__(
        self, name: str, folder: Path, suffixes: tuple[str, ...], take: Callable[[Session, Path], None]
    ) -> None:
        self.name = name
        self._folder = folder
        self._suffixes = suffixes
        self._take = take
        self._last_look: dict[str, str] = {}

    def poll(self, database: Database) -> int:
        """See `Watcher.poll`."""
        look = {path: print_ for path in self._files() if (print_ := _fingerprint(path))}
        settled = [path for path, print_ in look.items() if self._last_look.get(str(path)) == print_]
        self._last_look = {str(path): print_ for path, print_ in look.items()}
        if not settled:
            return 0
        with database.read() as session:
            seen = dict(
                session.exec(
                    select(WatchedItem.key, WatchedItem.fingerprint).where(WatchedItem.watcher == self.name)
                ).all()
            )
        fresh = [path for path in settled if seen.get(self._key(path)) != look[path]]
        return sum(self._take_file(database, path, look[path]) for path in fresh)

    def check(self) -> str:
        """See `Watcher.check`."""
        if not self._folder.is_dir():
            raise UsageError(f"there is no folder {self._folder}", "make it, or correct the configuration")
        return f"{self._folder}, {len(self._files())} files"

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(
            path
            for path in self._folder.rglob("*")
            if path.suffix in self._suffixes and not path.name.startswith(".") and path.is_file()
        )

    def _take_file(self, database: Database, path: Path, fingerprint: str) -> bool:
        try:
            with database.begin() as session:
                self._take(session, path)
                self._remember(session, path, fingerprint, "")
            return True
        except StorageError:
            raise  # the database's trouble, not the file's: it is taken at a later look
        except AssayError as error:
            self._report(database, path, fingerprint, str(error))
        except Exception as error:  # a file that stops the agent would stop it again after each restart
            log.exception("file %s failed unexpectedly", path)
            self._report(database, path, fingerprint, f"unexpected {type(error).__name__}: {error}")
        return False

    def _report(self, database: Database, path: Path, fingerprint: str, reason: str) -> None:
        with database.begin() as session:
            self._remember(session, path, fingerprint, reason)
            facts = {"watcher": self.name, "file": self._key(path), "error": reason}
            emit(session, "watcher.error", facts)

    def _remember(self, session: Session, path: Path, fingerprint: str, error: str) -> None:
        session.merge(
            WatchedItem(
                watcher=self.name,
                key=self._key(path),
                fingerprint=fingerprint,
                error=error,
                seen_at=utc_now(),
            )
        )

    def _key(self, path: Path) -> str:
        return str(path.relative_to(self._folder))


def _fingerprint(path: Path) -> str | None:
    try:
        found = path.stat()
    except OSError:  # gone since the folder was listed
        return None
    return f"{found.st_size}:{found.st_mtime_ns}" if found.st_size else None


def model_folder(folder: Path, name: str = "model-folder") -> FolderWatcher:
    """Registers the model that each TOML, YAML or JSON file describes."""

    def take(session: Session, path: Path) -> None:
        spec = parse_model(read_mapping(path), path.name)
        check_model(spec)
        catalog.add_model(session, spec)

    return FolderWatcher(name, folder, MODEL_SUFFIXES, take)


def prompt_folder(folder: Path, name: str = "prompt-folder") -> FolderWatcher:
    """Adds the prompts of each file: BENCHMARK.jsonl, BENCHMARK/anything.jsonl, or a TOML or YAML one."""

    def take(session: Session, path: Path) -> None:
        inside = path.relative_to(folder)
        benchmark = inside.parts[0] if len(inside.parts) > 1 else path.stem
        add_prompt_file(session, path, benchmark)

    return FolderWatcher(name, folder, PROMPT_SUFFIXES, take)
