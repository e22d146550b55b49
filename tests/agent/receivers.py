"""Other people's services: a web server that takes hooks, and a mail server, both on this machine."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    """What arrived; `statuses` are answered in turn, the last one from then on."""

    port: int = 0
    statuses: list[int] = field(default_factory=lambda: [200])
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@contextmanager
def hook_server() -> Iterator[Received]:
    """Takes any POST."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            received.headers.append(dict(self.headers))
            status = received.statuses.pop(0) if len(received.statuses) > 1 else received.statuses[0]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", received.url + "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with _running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        received.port = port
        yield received


@contextmanager
def mail_server() -> Iterator[Received]:
    """Speaks as much SMTP as a message needs (RFC 5321); `statuses` answer RCPT TO."""
    received = Received(statuses=[250])

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say(220, "ready")
            while line := self.rfile.readline().decode().strip():
                verb = line[:4].upper()
                if verb == "DATA":
                    self.say(354, "go on")
                    body = b""
                    while not body.endswith(b"\r\n.\r\n"):
                        body += self.rfile.readline()
                    received.bodies.append(body)
                status = received.statuses[0] if verb == "RCPT" else 221 if verb == "QUIT" else 250
                self.say(status, "so be it")
                if verb == "QUIT":
                    return

        def say(self, status: int, words: str) -> None:
            self.wfile.write(f"{status} {words}\r\n".encode())

    with _running(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        received.port = port
        yield received


@contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[index,misc]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
