"""The kill test: five studies run while worker, trainer, agent and broker are killed at random moments.

Two workers, a trainer, the agent and the bundled broker run under the supervisor that `assay up` uses, which
starts again what dies. The studies buy from the replay backend and, through the openai backend, from a local
endpoint that counts what it bills; both are slow and fail now and then. Budgets are read 20 times a second.

With `--database servers`, PostgreSQL and Redis of our own run behind proxies; besides the kills the database
is restarted as by a crash, the broker is killed and started again, and the network refuses both for 10 s.

Run with `python -m benchmarks.chaos --database sqlite --seed 1`, or `make chaos` for all three.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from agent.demo._run import free_port
from agent.supervisor import Child, Supervisor, embedded_children
from assay.errors import AssayError
from assay.settings import Settings
from benchmarks._chaos_checks import BudgetSampler, Check, check_all
from benchmarks._chaos_servers import OUTAGES, Servers, own_servers
from benchmarks._chaos_world import ChaosPlan, chaos_settings, fill
from benchmarks.databases import KINDS, fresh_database
from benchmarks.report import markdown_table, update_section
from storage import studies
from storage.database import Database

__all__ = ["ChaosResult", "main", "run_chaos"]

#: PostgreSQL and Redis of our own, which fail as well.
SERVERS = "servers"

VICTIMS = ("worker-1", "worker-2", "trainer", "agent", "broker")


@dataclass(frozen=True)
class ChaosResult:
    """What a kill test found.

    Attributes:
        checks: Everything that must hold.
        killed: How often each process was killed.
        under_way: Kills that happened while a study was unfinished.
        seconds: From the start of the processes to the end of the last study.
        tracebacks: Last lines of tracebacks in the logs, counted.
    """

    checks: list[Check]
    killed: dict[str, int]
    under_way: int
    seconds: float
    tracebacks: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether everything held."""
        return all(check.holds for check in self.checks)


def run_chaos(
    folder: Path, database_url: str, plan: ChaosPlan, servers: Servers | None = None
) -> ChaosResult:
    """Run one kill test in an empty folder on an empty database; with servers of its own, they fail as well.

    Raises:
        AssayError: Something did not start.
    """
    settings = chaos_settings(folder, database_url, servers.broker_url if servers else "")
    database = Database(settings.database)
    database.upgrade()
    port = free_port()
    fill(database, folder, plan, port)
    supervisor = _supervisor(settings, plan, port)
    try:
        started = time.monotonic()
        supervisor.start()
        _wait_for_endpoint(port, supervisor)
        with BudgetSampler(database) as sampler:
            killed, under_way = _kill(supervisor, database, plan, servers)
            _wait_until_done(supervisor, database, plan.patience_s)
            seconds = time.monotonic() - started
            bill: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/bill", timeout=10).json()
    finally:
        supervisor.stop()
    checks = [*check_all(database, sampler, bill), _all_kills_counted(plan, under_way)]
    database.close()
    return ChaosResult(checks, dict(killed), under_way, seconds, _tracebacks(supervisor.logs))


def _supervisor(settings: Settings, plan: ChaosPlan, port: int) -> Supervisor:
    endpoint = [sys.executable, "-m", "benchmarks.endpoint", str(settings.data_dir / "answers.json")]
    endpoint += ["--port", str(port), "--latency-ms", str(plan.latency_ms)]
    endpoint += ["--fault-rate", str(plan.failure_rate), "--faults", "error"]
    children = embedded_children(settings, workers=2, web=False, port=0)
    children += [
        Child(f"agent-{i}", [sys.executable, "-m", "agent", "agent"]) for i in range(2, plan.agents + 1)
    ]
    return Supervisor(
        [Child("endpoint", endpoint), *children], settings, {**settings.environment(), "OMP_NUM_THREADS": "1"}
    )


def _wait_for_endpoint(port: int, supervisor: Supervisor) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            httpx.get(f"http://127.0.0.1:{port}/bill", timeout=2).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssayError("the endpoint did not start", f"see {supervisor.logs}")


def _kill(
    supervisor: Supervisor, database: Database, plan: ChaosPlan, servers: Servers | None
) -> tuple[Counter[str], int]:
    """Kill the planned victims at the planned moments; returns who was killed and how many during work."""
    rng = np.random.default_rng([plan.seed, plan.kills])
    victims = [*VICTIMS, *(f"agent-{i}" for i in range(2, plan.agents + 1))]
    outages = _planned_outages(plan, rng) if servers else {}
    if servers:
        victims.remove("broker")  # which is none of the supervisor's children then
    killed: Counter[str] = Counter()
    under_way = 0
    for i, gap in enumerate(rng.uniform(*plan.gap_s, plan.kills)):
        name = str(rng.choice(victims))
        _running(supervisor, name)  # the moment is drawn from when it runs, so that few die while starting
        _watch(supervisor, float(gap))
        victim = _running(supervisor, name)
        unfinished = _unfinished(database)
        assert victim.process is not None
        os.kill(victim.process.pid, signal.SIGKILL)
        killed[victim.name] += 1
        under_way += bool(unfinished)
        if servers and i in outages:
            print(f"outage: {outages[i]}", flush=True)
            _strike(supervisor, servers, outages[i])
            killed[outages[i]] += 1
        print(f"kill {i + 1:2d}: {victim.name}, {unfinished} studies unfinished", flush=True)
    return killed, under_way


def _planned_outages(plan: ChaosPlan, rng: np.random.Generator) -> dict[int, str]:
    """After which kill each outage comes: every kind twice, in random order, evenly spread."""
    order = rng.permutation([*OUTAGES, *OUTAGES])
    gap = max(1, plan.kills // len(order))
    return {gap * k + gap // 2: str(outage) for k, outage in enumerate(order)}


def _strike(supervisor: Supervisor, servers: Servers, outage: str) -> None:
    """Bring the outage about while the supervisor goes on restarting what dies of it."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(servers.strike, outage)
        while not running.done():
            _watch(supervisor, 0.1)
        running.result()


def _watch(supervisor: Supervisor, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        supervisor.watch()
        time.sleep(min(0.05, left))


def _running(supervisor: Supervisor, name: str) -> Child:
    """The named child, once it runs (it may just be waiting for its restart)."""
    child = next(child for child in supervisor.children if child.name == name)
    while child.process is None or child.process.poll() is not None:
        _watch(supervisor, 0.05)
    return child


def _unfinished(database: Database) -> int:
    with database.read() as session:
        return len(studies.unfinished(session))


def _wait_until_done(supervisor: Supervisor, database: Database, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while _unfinished(database) and time.monotonic() < until:
        _watch(supervisor, 0.3)


def _all_kills_counted(plan: ChaosPlan, under_way: int) -> Check:
    found = f"{under_way} of {plan.kills}"
    return Check("every kill hit unfinished work", found, under_way == plan.kills)


def _tracebacks(logs: Path) -> dict[str, int]:
    """Last lines of the tracebacks in all logs; expected ones too, such as a lost broker connection."""
    found: Counter[str] = Counter()
    for log in logs.glob("*.log"):
        if log.stem == "endpoint":
            continue
        for block in log.read_text(errors="replace").split("Traceback (most recent call last):")[1:]:
            line = next((one for one in block.splitlines() if re.match(r"[A-Za-z_.]+(:|$)", one)), "?")
            found[f"{log.stem}: {line[:150]}"] += 1
    return dict(found)


# --- databases ---------------------------------------------------------------------------------------------


def _measure(kind: str, plan: ChaosPlan) -> ChaosResult | None:
    if kind == SERVERS:  # outages take time: fewer kills and longer studies, so that all hit unfinished work
        plan = replace(plan, kills=min(plan.kills, 18), max_prompts=170)
    with ExitStack() as stack:
        servers = stack.enter_context(own_servers()) if kind == SERVERS else None
        if kind == SERVERS:
            url = servers.database_url if servers else None
        else:
            url = stack.enter_context(fresh_database(kind))
        if url is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="assay-chaos-"))
        print(f"kill test on {kind}, seed {plan.seed}, in {folder}", flush=True)
        result = run_chaos(folder, url, plan, servers)
        _show(kind, result)
        if result.holds:
            shutil.rmtree(folder)
        else:
            print(f"logs are kept in {folder / 'logs'}")
        return result


def _show(kind: str, result: ChaosResult) -> None:
    print(f"\n{kind}: {sum(result.killed.values())} kills ({_killed(result)}) in {result.seconds:.0f} s")
    for check in result.checks:
        print(f"  {'holds ' if check.holds else 'FAILED'}  {check.what}: {check.found}")
    for line, count in sorted(result.tracebacks.items()):
        print(f"  in the logs {count} x {line}")
    print(flush=True)


def _report_servers(result: ChaosResult, plan: ChaosPlan) -> None:
    rows = [(check.what, ("yes: " if check.holds else "NO: ") + check.found) for check in result.checks]
    rows += [("killed, and outages", _killed(result)), ("seconds", f"{result.seconds:.0f}")]
    update_section(
        "Kill test with outages",
        f"python -m benchmarks.chaos --database servers --seed {plan.seed}",
        markdown_table(["what must hold", "PostgreSQL and Redis that fail as well"], rows),
        data="generated: 5 studies of up to 170 calls on 180 prompts, history of 20 models",
        seeds=str(plan.seed),
        notes="Besides kill -9 of workers, trainer and agent: the database restarted as by a crash, the"
        " broker killed and started again, and the network refusing both for 10 s, twice each.",
    )


def _report(results: dict[str, ChaosResult], plan: ChaosPlan) -> None:
    rows = [
        [
            check.what,
            *(("yes: " if r.checks[i].holds else "NO: ") + r.checks[i].found for r in results.values()),
        ]
        for i, check in enumerate(next(iter(results.values())).checks)
    ]
    rows.append(["killed", *(_killed(result) for result in results.values())])
    rows.append(["seconds", *(f"{result.seconds:.0f}" for result in results.values())])
    update_section(
        "Kill test",
        "make chaos",
        markdown_table(["what must hold", *results], rows),
        data=f"generated: 5 studies of up to {plan.max_prompts} calls on 180 prompts, history of 20 models",
        seeds=str(plan.seed),
        notes="kill -9 at random moments; victims and moments follow from the seed, what they hit does not.",
    )


def _said(check: Check) -> str:
    return f"{'yes' if check.holds else 'NO'}: {check.found}"


def _killed(result: ChaosResult) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(result.killed.items()))


def main() -> None:
    """Run, print, write docs/benchmarks.md; exit 1 where anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=[*KINDS, SERVERS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--agents", type=int, default=1, help="agent processes")
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    plan = replace(ChaosPlan(), seed=options.seed, kills=options.kills, agents=options.agents)
    kinds = [*KINDS, SERVERS] if options.database == "all" else [options.database]
    results = {kind: result for kind in kinds if (result := _measure(kind, plan)) is not None}
    served = results.pop(SERVERS, None)
    if served and not options.no_report:
        _report_servers(served, plan)
    if results and not options.no_report:
        _report(results, plan)
    if served:
        results[SERVERS] = served
    sys.exit(0 if all(result.holds for result in results.values()) else 1)


if __name__ == "__main__":
    main()
