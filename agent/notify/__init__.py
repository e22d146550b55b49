"""Telling people and other systems what happened: webhooks, Slack-style messages, e-mail.

Which events go where is configured; what is to be sent is stored with the event in one transaction, and sent
until it arrives. Third parties add ways by the entry point `assay.notifiers`.
"""

from agent.notify._base import DeliveryError, Message, Notifier
from agent.notify._deliver import Deliverer
from agent.notify._messages import message_of, wants
from agent.notify._registry import NOTIFIERS, make_notifier
from agent.notify._signing import sign, verify

__all__ = [
    "NOTIFIERS",
    "Deliverer",
    "DeliveryError",
    "Message",
    "Notifier",
    "make_notifier",
    "message_of",
    "sign",
    "verify",
    "wants",
]
