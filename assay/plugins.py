"""Registries of plug-ins: built-ins by name, third parties by entry point.

A registry maps a short kebab-case name to a class or factory. Built-ins are given as "module:attribute"
strings and imported when first asked for, so that naming an estimator that needs torch does not load torch
for those who use another. Names of the form `head:argument` (such as `corrected:mirt`) resolve to the head,
and the caller passes the argument on.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from assay.errors import UsageError

__all__ = ["Registry", "split_name"]

T = TypeVar("T")


def split_name(name: str) -> tuple[str, str | None]:
    """Split `head:argument` into its head and its argument (None where there is none)."""
    head, separator, argument = name.partition(":")
    return head, argument if separator else None


class Registry(Generic[T]):
    """Names and the things they stand for, of one kind.

    Args:
        kind: What the entries are, in the singular ("policy"); used in error messages.
        group: Entry-point group that third parties register under ("assay.policies").
        builtins: Name -> "module:attribute" of the built-in entries.
    """

    def __init__(self, kind: str, group: str, builtins: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self.builtins = tuple(builtins)
        self._targets = dict(builtins)
        self._loaded: dict[str, T] = {}
        self._discovered = False

    def _discover(self) -> None:
        if self._discovered:
            return
        for entry in entry_points(group=self.group):
            self._targets.setdefault(entry.name, entry.value)
        self._discovered = True

    def names(self) -> tuple[str, ...]:
        """All known names, built-in and third-party, sorted."""
        self._discover()
        return tuple(sorted(self._targets))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: str) -> bool:
        return split_name(name)[0] in self.names()

    def get(self, name: str) -> T:
        """Return what `name` (or the head of `head:argument`) stands for.

        Raises:
            UsageError: The name is unknown; the message lists the known ones and the nearest.
        """
        head, _ = split_name(name)
        self._discover()
        if head not in self._targets:
            raise UsageError(f"unknown {self.kind} '{name}'", self._advice(head))
        if head not in self._loaded:
            module, _, attribute = self._targets[head].partition(":")
            self._loaded[head] = _attribute(importlib.import_module(module), attribute)
        return self._loaded[head]

    def _advice(self, head: str) -> str:
        near = difflib.get_close_matches(head, self.names(), n=1)
        nearest = f"did you mean '{near[0]}'? " if near else ""
        return f"{nearest}known: {', '.join(self.names())}"


def _attribute(module: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        module = getattr(module, part)
    return module
