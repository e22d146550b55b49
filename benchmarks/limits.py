"""Limits at work: a shared limit of requests per minute, storms of 429, and calls in flight at full speed.

Each runs real worker processes (Celery, the bundled broker, SQLite) against an endpoint of ours in a process
of its own, through the whole path: claim, call, score, store, settle. Calls are counted at
the endpoint.

Run with `python -m benchmarks.limits --only shared|storms|throughput`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from benchmarks._workload import Workload, endpoint_process, fill, rows, workers_running
from benchmarks.report import markdown_table, update_section

__all__ = ["main", "windows"]

WINDOW_S = 60.0
LIMIT = 600


def windows(arrivals: Sequence[float], length: float = WINDOW_S) -> tuple[int, int]:
    """Fewest and most arrivals in any window of `length` seconds between the first arrival and the last.

    The most is taken over windows that begin with an arrival, the fewest over those that begin just after
    one: no other window can have more, or fewer.
    """
    times = np.sort(np.asarray(arrivals))
    most = max(bisect_left(times, start + length) - i for i, start in enumerate(times))
    last = times[-1] - length
    fewest = min(
        (bisect_left(times, start + length) - i - 1 for i, start in enumerate(times) if start <= last),
        default=0,
    )
    return int(fewest), int(most)


def _books(url: str, path: str) -> Any:
    with urlopen(f"{url}/{path}", timeout=10) as reply:
        return json.load(reply)


def _seconds(load: Workload, first: float) -> float:
    """From the first call's arrival to the last stored score."""
    (end,) = rows(load.database, "SELECT max(finished_at) FROM job")[0]
    return datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp() - first


# --- a limit shared by four processes ----------------------------------------------------------------------


def shared_limit(folder: Path, *, seconds: float, workers: int = 4) -> list[str]:
    """Four worker processes under one limit; the endpoint's view of every window."""
    count = int(LIMIT * seconds / 60)
    with endpoint_process("--latency-ms", "50") as url:
        load = fill(folder, f"{url}/v1", count, requests_per_minute=LIMIT, max_in_flight=64)
        with workers_running(load.settings, workers):
            load.send(chunk=40)
            load.wait(seconds * 2 + 60)
        arrivals: list[float] = _books(url, "arrivals")
        owners = rows(load.database, "SELECT count(*) FROM score")[0][0]
    load.database.close()
    fewest, most = windows(arrivals)
    return [
        str(workers),
        str(len(arrivals)),
        f"{arrivals[-1] - arrivals[0]:.0f}",
        f"{most}",
        f"{fewest}",
        f"{owners}",
    ]


def _shared(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="assay-limit-") as folder:
        row = shared_limit(Path(folder), seconds=seconds)
    header = ["worker processes", "calls", "seconds", "most in any 60 s", "fewest in any 60 s", "scores"]
    _report(
        "A limit shared by four workers",
        "shared",
        markdown_table(header, [row]),
        f"generated prompts, an endpoint of 50 ms, {LIMIT} requests per minute in the model's description",
        "Counted at the endpoint, over every window of 60 s from the first call to the last. Bounds: at most"
        f" {LIMIT}, at least {LIMIT * 95 // 100}.",
    )


# --- storms of 429 -----------------------------------------------------------------------------------------

STORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("10 s of 429 with Retry-After", ("--storm-s", "10")),
    ("10 s of 429 without", ("--storm-s", "10", "--silent")),
    ("100 calls/s are served, Retry-After", ("--limit-per-s", "100")),
    ("100 calls/s are served, nothing said", ("--limit-per-s", "100", "--silent")),
    ("20 calls/s are served, nothing said", ("--limit-per-s", "20", "--silent")),
)


def storm(folder: Path, options: Sequence[str], *, count: int, workers: int = 2) -> list[str]:
    """Calls that the endpoint saw per call that succeeded."""
    with endpoint_process("--latency-ms", "50", *options) as url:
        load = fill(folder, f"{url}/v1", count, max_in_flight=64)
        with workers_running(load.settings, workers):
            load.send(chunk=40)
            load.wait(240)
        books = _books(url, "bill")
    (done,) = rows(load.database, "SELECT count(*) FROM job WHERE state = 'done'")[0]
    load.database.close()
    refused = books["statuses"].get("429", 0)
    return [str(count), str(done), str(books["tries"]), str(refused), f"{books['tries'] / done:.3f}"]


def _storms(count: int) -> None:
    found = []
    for name, options in STORMS:
        with tempfile.TemporaryDirectory(prefix="assay-storm-") as folder:
            found.append([name, *storm(Path(folder), options, count=count)])
        print(found[-1], flush=True)
    header = ["the endpoint", "prompts", "scored", "calls", "of them 429", "calls per success"]
    _report(
        "Storms of 429",
        "storms",
        markdown_table(header, found),
        "generated prompts, an endpoint of 50 ms, two worker processes, 64 calls in flight allowed",
        "Bound: at most 1.2 calls per success. No limit is configured; the workers find it.",
    )


# --- throughput --------------------------------------------------------------------------------------------

#: Calls in flight, worker processes, threads of each, share of the ideal that is asked for.
RUNS = ((64, 1, 4, 0.85), (128, 2, 4, 0.75))
LATENCY_S = 0.2


def throughput(folder: Path, *, flight: int, workers: int, threads: int, count: int, chunk: int) -> list[str]:
    """Calls per second through the whole path."""
    with endpoint_process("--latency-ms", str(LATENCY_S * 1000)) as url:
        load = fill(folder, f"{url}/v1", count, max_in_flight=flight)
        with workers_running(load.settings, workers, threads) as pids:
            load.send(chunk)
            load.wait(240)
            memory = [_peak_mb(pid) for pid in pids]
            cpu_s = sum(_cpu_s(pid) for pid in pids)
        arrivals, books = _books(url, "arrivals"), _books(url, "bill")
        seconds = _seconds(load, min(arrivals))
    load.database.close()
    rate = count / seconds
    return [
        str(flight),
        str(workers),
        str(books["most_in_flight"]),
        str(count),
        f"{seconds:.1f}",
        f"{rate:.0f}",
        f"{rate * LATENCY_S / flight:.2f}",
        f"{max(memory):.0f}",
        f"{1000 * cpu_s / count:.2f}",
    ]


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _throughput(count: int, chunk: int) -> None:
    found = []
    for flight, workers, threads, _ in RUNS:
        with tempfile.TemporaryDirectory(prefix="assay-speed-") as folder:
            found.append(
                throughput(
                    Path(folder),
                    flight=flight,
                    workers=workers,
                    threads=threads,
                    count=count * flight // 64,
                    chunk=chunk,
                )
            )
        print(found[-1], flush=True)
    header = [
        "in flight allowed",
        "worker processes",
        "most seen",
        "calls",
        "seconds",
        "calls/s",
        "of in flight / 0.2 s",
        "peak MB of a worker",
        "CPU ms per call (workers)",
    ]
    load = os.getloadavg()[0]
    _report(
        "Calls in flight",
        "throughput",
        markdown_table(header, found),
        "generated prompts, an endpoint of 200 ms in another process, SQLite, the bundled broker",
        "From the first call's arrival to the last stored score: claim, call, score, store, settle. Bounds:"
        " 0.85 at 64, 0.75 at 128, under 250 MB. Load average of the machine at the end, this run included:"
        f" {load:.1f}; other programs ran beside it.",
    )


def _report(title: str, only: str, table: str, data: str, notes: str) -> None:
    print(table, flush=True)
    if "--no-report" not in sys.argv:
        command = f"python -m benchmarks.limits --only {only}"
        update_section(title, command, table, data=data, notes=notes)


def main() -> None:
    """Measure, print, write docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["shared", "storms", "throughput"], required=True)
    parser.add_argument("--seconds", type=float, default=150.0, help="of the shared limit")
    parser.add_argument("--count", type=int, help="prompts")
    parser.add_argument("--chunk", type=int, default=64, help="jobs per message")
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    if options.only == "shared":
        _shared(options.seconds)
    elif options.only == "storms":
        _storms(options.count or 1000)
    else:
        _throughput(options.count or 5000, options.chunk)


if __name__ == "__main__":
    main()
