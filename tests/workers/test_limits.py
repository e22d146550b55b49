"""What every store of limits must keep, and the gate in front of it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.supervisor import broker_command
from assay.settings import Settings
from assay.specs import ModelSpec
from workers import broker
from workers.limits import (
    Closed,
    Gate,
    Grant,
    Limits,
    LimitStore,
    LocalStore,
    RedisStore,
    Report,
    Result,
    Want,
    endpoint_of,
)

URL = "http://endpoint/v1"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("broker"), database_url="", broker_url="")
    running = subprocess.Popen(broker_command(settings), stdout=subprocess.DEVNULL)
    try:
        broker.ping(settings.broker, 10)
        yield settings.broker
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(settings.data_dir)


@pytest.fixture(params=["local", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Endpoint:
    """A store and one endpoint in it; each use has a loop of its own, as each process would."""

    def __init__(self, kind: str, redis_url: str, name: str) -> None:
        self.kind, self.url, self.name = kind, redis_url, name
        self.local = LocalStore()

    def exchange(self, limits: Limits, reports: list[Report] = [], wants: int = 0, tokens: int = 0) -> Grant:  # noqa: B006
        stamp = time.monotonic_ns()
        wanted = [Want(f"{stamp}:{i}", tokens) for i in range(wants)]
        self.ids = [want.id for want in wanted]

        async def run() -> Grant:
            if self.kind == "local":
                return await self.local.exchange(self.name, limits, reports, wanted)
            async with broker.async_client(self.url) as client:
                store: LimitStore = RedisStore(client)
                return await store.exchange(self.name, limits, reports, wanted)

        return asyncio.run(run())


@pytest.fixture
def at(kind: str, redis_url: str, request: pytest.FixtureRequest) -> Endpoint:
    return Endpoint(kind, redis_url, request.node.name)


def done(at: Endpoint, result: Result, granted_at: float, **more: float) -> list[Report]:
    return [Report(i, result, granted_at, **more) for i in at.ids]


def test_no_more_in_flight_than_allowed_and_places_come_back(at: Endpoint) -> None:
    limits = Limits(3)
    grant = at.exchange(limits, wants=5)
    assert (grant.count, grant.wait_s) == (3, -1.0)
    held = at.ids[:3]
    assert at.exchange(limits, wants=1).count == 0
    assert at.exchange(limits, [Report(held[0], Result.OK, grant.now)], wants=2).count == 1


def test_places_of_dead_workers_come_back_after_their_lease(at: Endpoint) -> None:
    limits = Limits(2, lease_s=0.05)
    assert at.exchange(limits, wants=2).count == 2
    time.sleep(0.06)
    assert at.exchange(limits, wants=2).count == 2


def test_requests_are_paced_with_a_small_burst(at: Endpoint) -> None:
    limits = Limits(1000, requests_per_minute=6000)
    grant = at.exchange(limits, wants=500)
    assert 60 <= grant.count <= 62  # one percent of the limit at once
    assert 0 < grant.wait_s < 0.02
    time.sleep(0.1)
    assert 9 <= at.exchange(limits, wants=500).count <= 13 * 3  # a hundred per second, and a slow machine


def test_tokens_are_paced_and_corrected_by_what_was_used(at: Endpoint) -> None:
    limits = Limits(1000, tokens_per_minute=60_000)  # a thousand per second
    grant = at.exchange(limits, wants=10, tokens=500)
    assert 2 <= grant.count <= 3
    assert grant.wait_s > 0
    assert at.exchange(limits, wants=1, tokens=500).count == 0
    saved = [Report("x", Result.OK, grant.now, tokens=-1500)]  # the answers were shorter than expected
    assert at.exchange(limits, saved, wants=1, tokens=500).count == 1


def test_a_429_pauses_the_endpoint_for_everybody_then_one_call_probes(at: Endpoint) -> None:
    limits = Limits(64)
    first = at.exchange(limits, wants=8)
    grant = at.exchange(limits, done(at, Result.BUSY, first.now, wait_s=0.2), wants=3)
    assert (grant.count, grant.change) == (0, "paused")
    assert 0.1 < grant.paused_s <= 0.201
    time.sleep(0.21)
    grant = at.exchange(limits, wants=5)
    assert grant.count == 1
    probe = [Report(at.ids[0], Result.OK, grant.now)]
    assert at.exchange(limits, probe, wants=5).count == 2  # it answered: two at once, then three, ...


def test_calls_from_before_a_pause_say_nothing_of_what_came_after(at: Endpoint) -> None:
    limits = Limits(64)
    first = at.exchange(limits, wants=8)
    reports = done(at, Result.BUSY, first.now, wait_s=0.05)
    at.exchange(limits, reports[:1])
    late = at.exchange(limits, reports[1:], wants=1)
    assert late.change == ""
    assert late.paused_s <= 0.051


def test_pauses_without_retry_after_double(at: Endpoint) -> None:
    limits = Limits(64)
    grant = at.exchange(limits, wants=1)
    grant = at.exchange(limits, done(at, Result.BUSY, grant.now))
    assert 0.4 < grant.paused_s <= 0.501
    again = at.exchange(limits, [Report("x", Result.BUSY, grant.now)])
    assert 0.9 < again.paused_s <= 1.001


def test_failures_in_a_row_open_the_circuit_and_a_probe_closes_it(at: Endpoint) -> None:
    limits = Limits(64)
    grant = at.exchange(limits, wants=20)
    failures = done(at, Result.FAILED, grant.now)
    assert at.exchange(limits, failures[:9], wants=1).count == 1
    opened = at.exchange(limits, failures[9:10], wants=1)
    assert (opened.change, opened.count) == ("opened", 0)
    time.sleep(opened.paused_s + 0.01)
    grant = at.exchange(limits, wants=5)
    assert grant.count <= 1  # those from before still count as in flight
    closed = at.exchange(limits, [*failures[10:], Report("probe", Result.OK, grant.now)])
    assert closed.change == "closed"


def test_single_failures_among_answers_open_nothing(at: Endpoint) -> None:
    limits = Limits(64)
    for _ in range(12):
        grant = at.exchange(limits, wants=2)
        one, two = at.ids
        reports = [Report(one, Result.FAILED, grant.now), Report(two, Result.OK, grant.now)]
        assert at.exchange(limits, reports).change == ""


# --- the gate ----------------------------------------------------------------------------------------------


def test_the_gate_lets_everybody_through_in_turn() -> None:
    async def run() -> int:
        gate, flying, most = Gate(LocalStore()), 0, 0

        async def call() -> None:
            nonlocal flying, most
            permit = await gate.enter(URL, Limits(5))
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0.002)
            flying -= 1
            permit.leave(Result.OK)

        await asyncio.gather(*(call() for _ in range(40)))
        await gate.drain()
        return most

    assert asyncio.run(run()) == 5


def test_whoever_would_wait_too_long_is_sent_away() -> None:
    async def run() -> float:
        gate = Gate(LocalStore())
        permit = await gate.enter(URL, Limits(5))
        permit.leave(Result.BUSY, wait_s=30)
        await gate.drain()
        with pytest.raises(Closed) as caught:
            await gate.enter(URL, Limits(5), patience_s=1)
        return caught.value.wait_s

    assert 29 < asyncio.run(run()) <= 30


def test_a_gate_that_is_shut_sends_the_waiting_away() -> None:
    async def run() -> list[bool]:
        gate = Gate(LocalStore())
        await gate.enter(URL, Limits(1))
        waiting = [asyncio.create_task(gate.enter(URL, Limits(1))) for _ in range(3)]
        await asyncio.sleep(0.02)
        gate.shut()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        return [isinstance(one, Closed) for one in found]

    assert asyncio.run(run()) == [True] * 3


def test_a_caller_that_gives_up_leaves_no_place_taken() -> None:
    async def run() -> None:
        gate = Gate(LocalStore())
        first = await gate.enter(URL, Limits(1))
        gone = asyncio.create_task(gate.enter(URL, Limits(1)))
        await asyncio.sleep(0.01)
        gone.cancel()
        first.leave(Result.OK)
        await asyncio.wait_for(gate.enter(URL, Limits(1)), 1)

    asyncio.run(run())


def test_two_accounts_at_one_url_are_two_endpoints() -> None:
    one = ModelSpec(name="m", base_url="http://h/v1/", api_key_env="A")
    assert endpoint_of(one) == "http://h/v1#A"
    assert endpoint_of(one.model_copy(update={"api_key_env": None})) == "http://h/v1"
    assert endpoint_of(ModelSpec(name="m", backend="replay")) == "replay:m"


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.limits._gate.AWAY_S", 0.01)

    class Away(LocalStore):
        asked = 0

        async def exchange(self, *arguments: object) -> Grant:  # type: ignore[override]
            self.asked += 1
            if self.asked < 3:
                raise ConnectionRefusedError
            return await super().exchange(*arguments)  # type: ignore[arg-type]

    async def run() -> int:
        store = Away()
        await Gate(store).enter(URL, Limits(1))
        return store.asked

    assert asyncio.run(run()) == 3
