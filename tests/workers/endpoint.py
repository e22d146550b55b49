"""A tiny OpenAI-compatible endpoint that misbehaves on demand: the prompt says how it shall answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Endpoint:
    """A running endpoint, and what it was asked; `responder` makes a body or a status of each request."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    responder: Callable[[dict[str, Any]], dict[str, Any] | int] | None = None


def completion(text: str | None, reason: str = "stop", tokens: tuple[int, int] = (10, 2)) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }


#: What a prompt beginning with the key is answered by: status, headers, body.
BEHAVIOURS: dict[str, tuple[int, dict[str, str], Any]] = {
    "busy": (429, {"Retry-After": "0.25"}, {"error": {"message": "slow down"}}),
    "busy until": (
        429,
        {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"},
        {"error": {"message": "slow down"}},
    ),
    "busy ms": (429, {"Retry-After-Ms": "125"}, {"error": {"message": "slow down"}}),
    "busy limit": (
        429,
        {"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "1m1.5s"},
        {"error": {"message": "slow down"}},
    ),
    "spent": (429, {}, {"error": {"code": "insufficient_quota"}}),
    "busy nan": (429, {"Retry-After": "nan"}, {"error": {"message": "slow down"}}),
    "busy inf": (429, {"Retry-After": "inf"}, {"error": {"message": "slow down"}}),
    "busy past": (429, {"Retry-After": "-5"}, {"error": {"message": "slow down"}}),
    "broken": (500, {}, {"error": {"message": "oops"}}),
    "denied": (401, {}, {"error": {"message": "wrong key sk-secret"}}),
    "missing": (404, {}, {"error": {"message": "no such model"}}),
    "garbage": (200, {}, "{not json"),
    "page": (200, {}, "<html>hello</html>"),
    "nothing": (200, {}, {**completion("x"), "choices": []}),
    "null": (200, {}, None),
    "shapeless": (200, {}, {**completion("x"), "choices": [{"index": 0}]}),
    "refuse": (200, {}, completion("", "content_filter")),
    "silent": (200, {}, completion(None)),
    "cut": (200, {}, completion("The answer is", "length")),
    "free of usage": (200, {}, {**completion("4"), "usage": None}),
}


class _Handler(BaseHTTPRequestHandler):
    endpoint: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.endpoint.asked.append(body)
        self.endpoint.headers.append(dict(self.headers))
        text = body["messages"][-1]["content"]
        if text.startswith("slow"):
            time.sleep(0.6)
        if self.endpoint.responder is not None:
            found = self.endpoint.responder(body)
            self._reply(*((found, {}, {"error": {}}) if isinstance(found, int) else (200, {}, found)))
            return
        status, headers, answer = BEHAVIOURS.get(text, (200, {}, completion(_answer(text))))
        self._reply(status, headers, answer)

    def do_GET(self) -> None:
        denied = self.headers.get("Authorization") == "Bearer wrong"
        self._reply(401 if denied else 200, {}, {"object": "list", "data": []})

    def _reply(self, status: int, headers: dict[str, str], answer: Any) -> None:
        content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # the client has gone
            pass

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _answer(text: str) -> str:
    return text.removeprefix("say ")


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # the default of 5 refuses connections that come at once


@contextmanager
def serving() -> Iterator[Endpoint]:
    """Serve on a free port of this machine."""
    endpoint = Endpoint("")
    handler = type("Handler", (_Handler,), {"endpoint": endpoint})
    with _Server(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
