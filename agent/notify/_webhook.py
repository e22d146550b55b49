"""Webhooks: the message as JSON, signed."""

from __future__ import annotations

import json
import time

import httpx

from agent.notify._base import Message, secret_of
from agent.notify._post import checked_url, post
from agent.notify._signing import HEADER, sign
from assay.errors import UsageError
from assay.specs import NotifySpec

__all__ = ["UrlTarget", "WebhookNotifier"]


class UrlTarget:
    """A target with a URL, given as `url` or, where the URL itself is a secret, by `url_env`."""

    def __init__(self, spec: NotifySpec) -> None:
        self._spec = spec

    def check(self) -> str:
        """See `Notifier.check`."""
        secret_of(self._spec.secret_env, self._spec.name)
        return f"{self._url().host}"

    def _url(self) -> httpx.URL:
        spec = self._spec
        url = secret_of(spec.url_env, spec.name) or spec.url
        if not url:
            raise UsageError(f"notify target '{spec.name}' has no URL", "give it url or url_env")
        return checked_url(url, spec.name)


class WebhookNotifier(UrlTarget):
    """Posts the message as JSON, with its id, and a signature where there is a secret."""

    def send(self, message: Message) -> None:
        """See `Notifier.send`."""
        body = json.dumps(message.as_dict(), ensure_ascii=True).encode()
        headers = {"X-Assay-Event": message.kind, "X-Assay-Delivery": message.id}
        secret = secret_of(self._spec.secret_env, self._spec.name)
        if secret is not None:
            headers[HEADER] = sign(secret, body, int(time.time()))
        post(self._url(), body, headers, allow_private=self._spec.allow_private)
