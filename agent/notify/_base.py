"""What every notifier is, and what it sends."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from assay.errors import AssayError, UsageError
from assay.specs import NotifySpec

__all__ = ["DeliveryError", "Message", "Notifier", "secret_of"]


@dataclass(frozen=True)
class Message:
    """What happened, for people and programs.

    Attributes:
        id: Identity of the message; the same at every try, so that a receiver can drop a repeated one.
        kind: Kind of the event, such as "study.finished".
        title: One line.
        text: A few sentences.
        facts: The event's payload: ids and names, never secrets.
        at: When it happened, ISO 8601.
    """

    id: str
    kind: str
    title: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    at: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class DeliveryError(AssayError):
    """A message did not arrive.

    Args:
        message: Why.
        hint: What to do about it.
        again: Whether another try may help.
    """

    def __init__(self, message: str, hint: str = "", *, again: bool = True) -> None:
        super().__init__(message, hint)
        self.again = again


class Notifier(Protocol):
    """Sends messages to one target. Built from its target's entry in the configuration."""

    def __init__(self, spec: NotifySpec) -> None: ...

    def check(self) -> str:
        """Say where messages go; UsageError where the configuration cannot work (no address, no secret)."""
        ...

    def send(self, message: Message) -> None:
        """Send a message; DeliveryError where it did not arrive."""
        ...


def secret_of(variable: str | None, target: str) -> str | None:
    """A secret from the environment; None where none is named.

    Raises:
        UsageError: The variable is named, but not set.
    """
    if not variable:
        return None
    value = os.environ.get(variable)
    if not value:
        raise UsageError(
            f"notify target '{target}': environment variable {variable} is not set", "set it for the agent"
        )
    return value
