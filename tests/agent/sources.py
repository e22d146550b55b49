"""A local server that speaks as the watched sources do: OpenAI, Hugging Face, MLflow, files with ETags."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Source:
    """What the server says at the moment.

    Attributes:
        names: Models that are there.
        lines: Content of the prompt file.
        status: Answered instead, where it is not 200.
        asked: (path, If-None-Match, Authorization) of every request.
        sent: How often content was sent, not just "not modified".
    """

    names: list[str] = field(default_factory=list)
    lines: str = ""
    status: int = 200
    body: bytes | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0
    url: str = ""

    def content(self, path: str, query: dict[str, list[str]]) -> tuple[Any, str]:
        """Content and Link header of a path."""
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": name, "object": "model"} for name in self.names]}, ""
        if path == "/api/models":
            return self._hub_page(int(query.get("page", ["0"])[0]))
        if path.startswith("/api/collections/"):
            items = [{"type": "model", "id": name} for name in self.names]
            return {"slug": unquote(path[17:]), "items": [*items, {"type": "dataset", "id": "d"}]}, ""
        if path == "/api/2.0/mlflow/model-versions/search":
            return self._registry_page(query), ""
        return (self.lines, "") if path == "/prompts.jsonl" else (None, "")

    def _hub_page(self, page: int) -> tuple[Any, str]:
        part = self.names[2 * page : 2 * page + 2]
        more = f'<{self.url}/api/models?page={page + 1}>; rel="next"' if self.names[2 * page + 2 :] else ""
        return [{"id": name, "modelId": name} for name in part], more

    def _registry_page(self, query: dict[str, list[str]]) -> Any:
        page = int(query.get("page_token", ["0"])[0])
        part = [name.partition(":") for name in self.names[2 * page : 2 * page + 2]]
        answer: dict[str, Any] = {}
        if part:
            answer["model_versions"] = [{"name": name, "version": version} for name, _, version in part]
        if self.names[2 * page + 2 :]:
            answer["next_page_token"] = str(page + 1)
        return answer


class _Handler(BaseHTTPRequestHandler):
    source: Source

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        known = self.headers.get("If-None-Match", "")
        self.source.asked.append((parts.path, known, self.headers.get("Authorization", "")))
        content, link = self.source.content(parts.path, parse_qs(parts.query))
        if self.source.status != 200 or content is None:
            self._answer(self.source.status if self.source.status != 200 else 404, b"{}", {})
            return
        body = self.source.body or (content if isinstance(content, str) else json.dumps(content)).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        headers = {"ETag": etag, **({"Link": link} if link else {})}
        if known == etag:
            self._answer(304, b"", headers)
            return
        self.source.sent += 1
        self._answer(200, body, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def serving() -> Iterator[Source]:
    """A source on a free port."""
    source = Source()
    handler = type("Handler", (_Handler,), {"source": source})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    source.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield source
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
