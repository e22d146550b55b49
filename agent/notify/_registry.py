"""Notifiers by name."""

from __future__ import annotations

from agent.notify._base import Notifier
from assay.plugins import Registry
from assay.specs import NotifySpec

__all__ = ["NOTIFIERS", "make_notifier"]

NOTIFIERS: Registry[type[Notifier]] = Registry(
    "notifier",
    "assay.notifiers",
    {
        "webhook": "agent.notify._webhook:WebhookNotifier",
        "slack": "agent.notify._slack:SlackNotifier",
        "email": "agent.notify._email:EmailNotifier",
    },
)


def make_notifier(spec: NotifySpec) -> Notifier:
    """The notifier of a target."""
    return NOTIFIERS.get(spec.kind)(spec)
