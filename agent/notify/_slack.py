"""Slack-style incoming webhooks (Slack, Mattermost, Rocket.Chat, Discord's /slack)."""

from __future__ import annotations

import json

from agent.notify._base import Message
from agent.notify._post import post
from agent.notify._webhook import UrlTarget

__all__ = ["SlackNotifier"]


class SlackNotifier(UrlTarget):
    """Posts `{"text": ...}`; the URL is a secret and belongs into `url_env`."""

    def send(self, message: Message) -> None:
        """See `Notifier.send`."""
        body = json.dumps({"text": f"*{_escaped(message.title)}*\n{_escaped(message.text)}"}).encode()
        post(self._url(), body, {}, allow_private=self._spec.allow_private)


def _escaped(text: str) -> str:
    """Text that mentions nobody and links nowhere: the three characters that Slack gives a meaning."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
