"""What a request needs: a session, and names and numbers read from its address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlmodel import Session, select

from assay.errors import UsageError
from storage.tables import Benchmark

__all__ = ["Reading", "benchmark_name", "number", "refuse_hidden", "wants_json"]

LARGEST_ID = 2**31 - 1


def _session(request: Request) -> Iterator[Session]:
    with request.app.state.database.read() as session:
        yield session


Reading = Annotated[Session, Depends(_session)]


def wants_json(request: Request) -> bool:
    """Whether JSON was asked for, by suffix or query."""
    return request.query_params.get("format") == "json" or request.url.path.endswith(".json")


def refuse_hidden(ref: str, what: str) -> None:
    """Refuse a name that no database can hold."""
    if "\x00" in ref:
        raise UsageError(f"a {what}'s name holds no such characters", f"see the list of {what}s")


def benchmark_name(session: Session, ref: str) -> str:
    """A benchmark's name from the end of a path; ".json" belongs to it only where it is called so."""
    refuse_hidden(ref, "benchmark")
    if ref.endswith(".json"):
        called_so = session.exec(select(Benchmark.id).where(Benchmark.name == ref)).first()
        return ref if called_so is not None else ref.removesuffix(".json")
    return ref


def number(ref: str, what: str = "study", these: str = "studies") -> int:
    """A row's number from a path or query.

    Raises:
        UsageError: It is none.
    """
    digits = ref.removesuffix(".json")
    if not (digits.isascii() and digits.isdigit() and int(digits[:20]) <= LARGEST_ID):
        raise UsageError(f"'{ref[:50]}' is not a {what}'s number", f"see the list of {these}")
    return int(digits)
