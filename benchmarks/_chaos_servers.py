"""A PostgreSQL and a Redis of our own, behind proxies: to be restarted and cut off while everything runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import redis

from agent.demo._run import free_port
from assay.errors import AssayError

__all__ = ["OUTAGES", "Servers", "own_servers"]

#: What can befall the servers.
OUTAGES = ("database restart", "broker restart", "network refused for 10 s")

REFUSED_S = 10.0
PATIENCE_S = 60.0


class Proxy:
    """Passes connections on to a port of this machine, until it is told to refuse them.

    Args:
        target: The port that is passed on to.
    """

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.allow()

    def allow(self) -> None:
        """Listen."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def refuse(self) -> None:
        """Stop listening, and cut what is connected."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there[1]}
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        self._open -= {writer, there[1]}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Servers:
    """Both servers, in a folder of their own.

    Attributes:
        database_url: Of an empty database, through the proxy.
        broker_url: Of the broker, through the proxy.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self._ports = free_port(), free_port()
        self._redis: subprocess.Popen[bytes] | None = None
        self._initialize()
        self._start_database()
        self._start_broker()
        self._proxies = [Proxy(port) for port in self._ports]
        self.database_url = f"postgresql://postgres@127.0.0.1:{self._proxies[0].port}/postgres"
        self.broker_url = f"redis://127.0.0.1:{self._proxies[1].port}/0"

    def strike(self, outage: str) -> None:
        """Bring an outage about; returns when it is over."""
        if outage == "database restart":
            self._stop_database()
            time.sleep(1.0)
            self._start_database()
        elif outage == "broker restart":
            self._stop_broker()
            time.sleep(1.0)
            self._start_broker()
        else:
            for proxy in self._proxies:
                proxy.refuse()
            time.sleep(REFUSED_S)
            for proxy in self._proxies:
                proxy.allow()

    def stop(self) -> None:
        """Stop both."""
        for proxy in self._proxies:
            proxy.refuse()
        self._stop_broker()
        self._stop_database()

    def _initialize(self) -> None:
        data = self._folder / "postgresql"
        data.mkdir()
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(self._folder, "postgres")
            shutil.chown(data, "postgres")
        self._postgres("initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync")

    def _start_database(self) -> None:
        options = (
            f"-p {self._ports[0]} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        )
        log = str(self._folder / "postgresql" / "server.log")
        self._postgres(
            "pg_ctl", "-D", str(self._folder / "postgresql"), "-w", "-l", log, "-o", options, "start"
        )
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{self._ports[0]}/postgres"):
            pass

    def _stop_database(self) -> None:
        """As a crash would: connections are cut, nothing is finished."""
        self._postgres("pg_ctl", "-D", str(self._folder / "postgresql"), "-m", "immediate", "-w", "stop")

    def _postgres(self, program: str, *arguments: str) -> None:
        as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*as_user, str(self._programs / program), *arguments]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", check=False
        )
        if done.returncode:
            raise AssayError(f"{program} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")

    def _start_broker(self) -> None:
        command = ["redis-server", "--port", str(self._ports[1]), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(self._folder)]
        self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(redis.RedisError):
                if redis.Redis(port=self._ports[1]).ping():
                    return
            time.sleep(0.1)
        raise AssayError("the broker did not start")

    def _stop_broker(self) -> None:
        assert self._redis is not None
        self._redis.kill()
        self._redis.wait()


def _programs() -> Path | None:
    found: Sequence[Path] = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = shutil.which("initdb")
    return found[-1].parent if found else (Path(path).parent if path else None)


@contextmanager
def own_servers() -> Iterator[Servers | None]:
    """Both servers in a temporary folder; None, and a word why, where they are not installed."""
    programs = _programs()
    if programs is None or shutil.which("redis-server") is None:
        print("PostgreSQL or Redis is not installed on this machine; outages are left out")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="assay-servers-", ignore_cleanup_errors=True) as folder:
        servers = Servers(Path(folder), programs)
        try:
            yield servers
        finally:
            servers.stop()
