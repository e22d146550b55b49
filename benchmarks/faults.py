"""The fault run: many prompts against an endpoint of ours of which a share of all tries goes wrong.

The endpoint delays, refuses, answers 429 with and without Retry-After and 500, drops connections in the
middle of a body, sends malformed JSON, truncates, lies about usage, hangs, answers without choices, filters
and denies. At the end every prompt must be scored or set aside with its reason, none scored wrong, none
charged twice, and what was settled must be what the endpoint billed.

Run with `python -m benchmarks.faults --prompts 2000 --rate 0.2 --seed 1`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks._workload import PRICE, Workload, fill, rows
from benchmarks.endpoint import Behaviour, LocalEndpoint, serving
from benchmarks.report import markdown_table, update_section
from workers.calls import Calls
from workers.execution import WorkerContext, run_jobs

__all__ = ["FaultRun", "main", "run_faults"]

CHUNK = 64
THREADS = 4


@dataclass(frozen=True)
class FaultRun:
    """What a fault run found.

    Attributes:
        states: Jobs by (state, status).
        wrong: Scores other than 1; every answer that the endpoint gives is right.
        twice: Jobs with more than one settled charge.
        billed, settled: Micro-dollars by the endpoint's and our books, of all calls whose bill can be known.
        different: Calls among those on which the two disagree.
        guessed: Calls settled at their worst case, since usage was a lie or every answer was lost.
        short: Calls settled for less than was billed.
        calls: Calls that the endpoint saw.
        repeats: Calls answered again by their key, not billed again.
        tries: Failed tries by status, as kept with the jobs.
        unexplained: Jobs set aside without status or reason.
        open_reservations: Micro-dollars still reserved at the end.
        seconds: How long it took.
    """

    states: Counter[tuple[str, str]]
    wrong: int
    twice: int
    billed: int
    settled: int
    different: int
    guessed: int
    short: int
    calls: int
    repeats: int
    tries: Counter[str]
    unexplained: int
    open_reservations: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether everything holds that must."""
        ended = all(state in ("done", "parked") for state, _ in self.states)
        faults = self.wrong + self.twice + self.different + self.short + self.unexplained
        return ended and not faults and self.billed == self.settled and not self.open_reservations


def run_faults(
    folder: Path, *, prompts: int, rate: float, seed: int, timeout_s: float = 1.0, latency_s: float = 0.01
) -> FaultRun:
    """Run all prompts to their end in an empty folder."""
    behaviour = Behaviour(latency_s=latency_s, fault_rate=rate, seed=seed, retry_after_s=0.1)
    with serving(behaviour) as endpoint:
        load = fill(folder, endpoint.url, prompts, timeout_s=timeout_s, max_in_flight=64)
        started = time.monotonic()
        _Runner(load).run()
        found = _judge(load, endpoint, time.monotonic() - started)
    load.database.close()
    return found


class _Runner:
    """Runs jobs in threads, and those that are sent again when their time has come."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self._pool = ThreadPoolExecutor(THREADS)
        self._open = 0
        self._idle = threading.Condition()
        self._context = WorkerContext(
            load.database, load.settings, "worker", lambda: None, self._send, Calls()
        )

    def run(self) -> None:
        ids = self._load.ids
        for start in range(0, len(ids), CHUNK):
            self._send(ids[start : start + CHUNK])
        with self._idle:
            self._idle.wait_for(lambda: not self._open)
        self._pool.shutdown()

    def _send(self, ids: Sequence[int], kind: str = "inference", delay_s: float = 0.0) -> None:
        with self._idle:
            self._open += 1
        if delay_s:
            timer = threading.Timer(delay_s + 0.01, self._pool.submit, (self._work, list(ids)))
            timer.daemon = True
            timer.start()
        else:
            self._pool.submit(self._work, list(ids))

    def _work(self, ids: list[int]) -> None:
        try:
            run_jobs(self._context, ids)
        finally:
            with self._idle:
                self._open -= 1
                self._idle.notify_all()


def _judge(load: Workload, endpoint: LocalEndpoint, seconds: float) -> FaultRun:
    database = load.database
    entries = rows(
        database,
        "SELECT job.id, job.bill, job.state, entry.state AS entry, entry.settled FROM job"
        " JOIN ledgerentry AS entry ON entry.job_id = job.id"
        " JOIN budget ON budget.id = entry.budget_id AND budget.unit = 'usd'",
    )
    settled = {f"assay-job-{row.id}": row.settled for row in entries if row.entry == "settled"}
    guessed = {
        f"assay-job-{row.id}"
        for row in entries
        if row.entry == "settled" and ("usage" in row.bill or row.bill == "{}")
    }
    billed = {key: PRICE.micro_dollars(*usage) for key, usage in endpoint.billed.items()}
    known = {*settled, *billed} - guessed
    return FaultRun(
        states=Counter({(row.state, row.status): row.n for row in rows(database, STATES)}),
        wrong=len(rows(database, "SELECT 1 FROM score WHERE value <> 1")),
        twice=len(rows(database, TWICE)),
        billed=sum(billed.get(key, 0) for key in known),
        settled=sum(settled.get(key, 0) for key in known),
        different=sum(settled.get(key) != billed.get(key) for key in known),
        guessed=len(guessed),
        short=sum(settled.get(key, 0) < amount for key, amount in billed.items()),
        calls=sum(endpoint.tries.values()),
        repeats=endpoint.repeats,
        tries=Counter({row.status: row.n for row in rows(database, TRIES)}),
        unexplained=len(rows(database, UNEXPLAINED)),
        open_reservations=int(rows(database, "SELECT sum(reserved) FROM budget")[0][0]),
        seconds=seconds,
    )


STATES = "SELECT state, status, count(*) AS n FROM job GROUP BY state, status"
TRIES = "SELECT status, count(*) AS n FROM attempt GROUP BY status"
UNEXPLAINED = "SELECT 1 FROM job WHERE state = 'parked' AND (status = '' OR reason = '')"
TWICE = "SELECT 1 FROM ledgerentry WHERE state = 'settled' GROUP BY job_id, budget_id HAVING count(*) > 1"


def _table(run: FaultRun) -> str:
    states = ", ".join(f"{n} {state} ({status})" for (state, status), n in sorted(run.states.items()))
    found = [
        ("every prompt scored or set aside with its reason", f"{states}; {run.unexplained} unexplained"),
        ("none scored wrong", f"{run.wrong} wrong"),
        ("none charged twice", f"{run.twice} twice"),
        (
            "spend = the endpoint's own count, call by call",
            f"${run.settled / 1e6:.6f} settled, ${run.billed / 1e6:.6f} billed, {run.different} different",
        ),
        (
            "settled at the worst case: usage missing or impossible, or every answer lost",
            f"{run.guessed} calls, {run.short} of them for less than was billed",
        ),
        ("nothing reserved at the end", f"{run.open_reservations}"),
        (
            "calls",
            f"{run.calls} in {run.seconds:.0f} s; {run.repeats} answered again by key, not billed again",
        ),
        ("failed tries", ", ".join(f"{n} {status}" for status, n in sorted(run.tries.items()))),
    ]
    return markdown_table(["what must hold", "found"], found)


def main() -> None:
    """Run, print, write docs/benchmarks.md; exit 1 where anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-faults-") as folder:
        run = run_faults(Path(folder), prompts=options.prompts, rate=options.rate, seed=options.seed)
    table = _table(run)
    print(table)
    if not options.no_report:
        update_section(
            "Faults",
            f"python -m benchmarks.faults --prompts {options.prompts} --rate {options.rate}"
            f" --seed {options.seed}",
            table,
            data=f"{options.prompts} generated prompts, {options.rate:.0%} of all tries faulty, 13 kinds",
            seeds=str(options.seed),
            notes="What each fault leads to: [failures.md](failures.md).",
        )
    sys.exit(0 if run.holds else 1)


if __name__ == "__main__":
    main()
