"""The kill test: five studies run while worker, trainer, agent and broker are killed at random moments.

Two workers, a trainer, the agent and the bundled broker run under the supervisor that `assay up` uses, which
starts again what dies. The studies buy from the replay backend and, through the openai backend, from a local
endpoint that counts what it bills; both are slow and fail now and then. Budgets are read 20 times a second.

Run with `python -m benchmarks.chaos --database sqlite --seed 1`, or `make chaos` for SQLite and PostgreSQL.
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
from benchmarks._chaos_world import ChaosPlan, chaos_settings, fill
from benchmarks.databases import KINDS, fresh_database
from benchmarks.report import markdown_table, update_section
from storage import studies
from storage.database import Database

__all__ = ["ChaosResult", "main", "run_chaos"]

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


def run_chaos(folder: Path, database_url: str, plan: ChaosPlan) -> ChaosResult:
    """Run one kill test in an empty folder on an empty database.

    Raises:
        AssayError: Something did not start.
    """
    settings = chaos_settings(folder, database_url)
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
            killed, under_way = _kill(supervisor, database, plan)
            _wait_until_done(supervisor, database, plan.patience_s)
            seconds = time.monotonic() - started
            bill: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/bill", timeout=10).json()
    finally:
        supervisor.stop()
    checks = [*check_all(database, sampler, bill), _all_kills_counted(plan, under_way)]
    database.close()
    return ChaosResult(checks, dict(killed), under_way, seconds, _tracebacks(supervisor.logs))


def _supervisor(settings: Settings, plan: ChaosPlan, port: int) -> Supervisor:
    endpoint = [sys.executable, "-m", "benchmarks._chaos_endpoint", str(settings.data_dir / "answers.json")]
    endpoint += ["--port", str(port), "--latency-ms", str(plan.latency_ms)]
    endpoint += ["--failure-rate", str(plan.failure_rate)]
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


def _kill(supervisor: Supervisor, database: Database, plan: ChaosPlan) -> tuple[Counter[str], int]:
    """Kill the planned victims at the planned moments; returns who was killed and how many during work."""
    rng = np.random.default_rng([plan.seed, plan.kills])
    victims = [*VICTIMS, *(f"agent-{i}" for i in range(2, plan.agents + 1))]
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
        print(f"kill {i + 1:2d}: {victim.name}, {unfinished} studies unfinished", flush=True)
    return killed, under_way


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
    with fresh_database(kind) as url:
        if url is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="assay-chaos-"))
        print(f"kill test on {kind}, seed {plan.seed}, in {folder}", flush=True)
        result = run_chaos(folder, url, plan)
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
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--agents", type=int, default=1, help="agent processes")
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    plan = replace(ChaosPlan(), seed=options.seed, kills=options.kills, agents=options.agents)
    kinds = list(KINDS) if options.database == "both" else [options.database]
    results = {kind: result for kind in kinds if (result := _measure(kind, plan)) is not None}
    if results and not options.no_report:
        _report(results, plan)
    sys.exit(0 if all(result.holds for result in results.values()) else 1)


if __name__ == "__main__":
    main()
