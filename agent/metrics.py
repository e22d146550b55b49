"""Metrics for Prometheus, read from the database: the same from every process, and true after any restart.

Counters are sums over stored rows, so they outlive the processes that caused them. Outputs are many: those
older than a while are summed once and remembered, the newer ones (whose transactions may end in any order)
again at each look.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from sqlalchemy import case, func
from sqlmodel import Session, col, select

from agent.spending import endpoints_of, groups_of, spend_state
from assay import __version__
from storage import estimates, outbox
from storage.database import Database
from storage.tables import (
    Attempt,
    Benchmark,
    Budget,
    EstimatorVersion,
    Event,
    Job,
    JobState,
    Output,
    Study,
    VersionState,
    utc_now,
)

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SETTLED = timedelta(minutes=2)  # no transaction that stores an output lasts longer
QUANTILES = (0.5, 0.9, 1.0)

Latencies = dict[tuple[str, int], list[float]]  # (endpoint, bucket) -> [count, seconds]


class Metrics:
    """The metrics of one database.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._summed_to = 0  # outputs up to this id are in `_summed`
        self._summed: Latencies = {}
        self._spent: tuple[object, list[Any]] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(_FromDatabase(self))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format.

        Raises:
            StorageError: The database cannot be reached.
        """
        with self._lock:
            return generate_latest(self._registry)

    def collect(self) -> list[Metric]:
        """All metrics, from one snapshot of the database."""
        with self._database.read() as session:
            endpoints = endpoints_of(session)
            return [
                InfoMetricFamily("assay", "The running program", value={"version": __version__}),
                *_jobs(session),
                *self._calls(session, endpoints),
                *self._spending(session),
                _budgets(session),
                *_studies(session),
                *_versions(session),
                *_events(session),
            ]

    def _calls(self, session: Session, endpoints: dict[int, str]) -> Iterator[Metric]:
        limit = utc_now() - SETTLED
        query: Any = select(func.max(Output.id)).where(col(Output.created_at) < limit)
        settled = int(session.exec(query).one() or 0)
        if settled > self._summed_to:
            _add(self._summed, _latencies(session, endpoints, self._summed_to, settled))
            self._summed_to = settled
        total: Latencies = {key: list(value) for key, value in self._summed.items()}
        _add(total, _latencies(session, endpoints, self._summed_to, None))
        histogram = HistogramMetricFamily(
            "assay_call_seconds", "Time of answered calls, by endpoint", labels=["endpoint"]
        )
        for endpoint in sorted({endpoint for endpoint, _ in total}):
            counts = [total.get((endpoint, b), [0, 0.0]) for b in range(len(BUCKETS_S) + 1)]
            running = np.cumsum([count for count, _ in counts]).tolist()
            bounds = [*map(str, BUCKETS_S), "+Inf"]
            seconds = sum(seconds for _, seconds in counts)
            histogram.add_metric([endpoint], list(zip(bounds, running, strict=True)), seconds)
        yield histogram

    def _spending(self, session: Session) -> Iterator[Metric]:
        state = spend_state(session)
        if self._spent is None or self._spent[0] != state:
            self._spent = state, groups_of(session)
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for group in self._spent[1]:
            sums[group.benchmark, group.endpoint] += group.spent
        spent = CounterMetricFamily(
            "assay_spent_usd",
            "US dollars settled, by benchmark and endpoint",
            labels=["benchmark", "endpoint"],
        )
        for labels, micro in sorted(sums.items()):
            spent.add_metric(list(labels), micro / 1e6)
        yield spent


class _FromDatabase(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """See `Metrics.collect`."""
        return self._metrics.collect()


def _latencies(session: Session, endpoints: dict[int, str], after: int, to: int | None) -> Latencies:
    """Calls and seconds by endpoint and bucket of the outputs with after < id <= to."""
    bucket = case(
        *((col(Output.latency_ms) <= bound * 1000, i) for i, bound in enumerate(BUCKETS_S)),
        else_=len(BUCKETS_S),
    )
    query: Any = (
        select(Output.method_id, bucket, func.count(), func.sum(Output.latency_ms))
        .where(col(Output.id) > after)
        .group_by(col(Output.method_id), bucket)
    )
    if to is not None:
        query = query.where(col(Output.id) <= to)
    found: Latencies = {}
    for method, place, count, milliseconds in session.exec(query).all():
        _add(found, {(endpoints[method], int(place)): [int(count), float(milliseconds) / 1000]})
    return found


def _add(total: Latencies, more: Latencies) -> None:
    for key, (count, seconds) in more.items():
        known = total.setdefault(key, [0, 0.0])
        known[0] += count
        known[1] += seconds


def _jobs(session: Session) -> Iterator[Metric]:
    query: Any = select(Job.kind, Job.state, func.count()).group_by(col(Job.kind), col(Job.state))
    jobs = GaugeMetricFamily(
        "assay_jobs", "Jobs by kind and state; queued is the depth", labels=["kind", "state"]
    )
    for kind, state, count in session.exec(query).all():
        jobs.add_metric([kind, state], count)
    oldest = GaugeMetricFamily("assay_queue_oldest_seconds", "Age of the oldest queued job", labels=["kind"])
    for kind in sorted({sample.labels["kind"] for sample in jobs.samples}):
        first = (
            select(Job).where(Job.kind == kind, Job.state == JobState.QUEUED).order_by(col(Job.id)).limit(1)
        )
        job = session.exec(first).first()
        oldest.add_metric([kind], 0.0 if job is None else _age(job.created_at))
    failures = CounterMetricFamily(
        "assay_call_failures", "Tries that brought no score, by status", labels=["status"]
    )
    by_status: Any = select(Attempt.status, func.count()).group_by(col(Attempt.status))
    for status, count in session.exec(by_status).all():
        failures.add_metric([status], count)
    yield from (jobs, oldest, failures)


def _age(since: datetime) -> float:
    return max(0.0, (utc_now() - since).total_seconds())


def _budgets(session: Session) -> Metric:
    """Caps above studies: studies come and go, and have pages of their own."""
    gauge = GaugeMetricFamily(
        "assay_budget", "Caps, in dollars or their unit", labels=["scope", "id", "unit", "period", "what"]
    )
    for budget in session.exec(select(Budget).where(Budget.scope != "study")).all():
        size = 1e6 if budget.unit == "usd" else 1.0
        for what in ("cap", "spent", "reserved"):
            labels = [budget.scope, str(budget.scope_id), budget.unit, budget.period, what]
            gauge.add_metric(labels, getattr(budget, what) / size)
    return gauge


def _studies(session: Session) -> Iterator[Metric]:
    studies = GaugeMetricFamily("assay_studies", "Studies by state", labels=["state"])
    for state, count in session.exec(select(Study.state, func.count()).group_by(col(Study.state))).all():
        studies.add_metric([state], count)
    yield studies
    width = GaugeMetricFamily(
        "assay_interval_width",
        "Width of the newest estimates' intervals, by quantile over the models",
        labels=["benchmark", "quantile"],
    )
    for benchmark in session.exec(select(Benchmark)).all():
        widths = [e.high - e.low for e in estimates.latest(session, benchmark.id or 0)]
        for quantile in QUANTILES if widths else ():
            width.add_metric([benchmark.name, str(quantile)], float(np.quantile(widths, quantile)))
    yield width


def _versions(session: Session) -> Iterator[Metric]:
    query: Any = (
        select(Benchmark.name, EstimatorVersion.state, func.count())
        .join(Benchmark, col(Benchmark.id) == col(EstimatorVersion.benchmark_id))
        .group_by(col(Benchmark.name), col(EstimatorVersion.state))
    )
    versions = GaugeMetricFamily(
        "assay_estimator_versions", "Fitted and wanted estimators", labels=["benchmark", "state"]
    )
    for benchmark, state, count in session.exec(query).all():
        versions.add_metric([benchmark, state], count)
    yield versions
    champions: Any = (
        select(Benchmark.name, EstimatorVersion.estimator, func.max(EstimatorVersion.id))
        .join(Benchmark, col(Benchmark.id) == col(EstimatorVersion.benchmark_id))
        .where(EstimatorVersion.state == VersionState.CHAMPION)
        .group_by(col(Benchmark.name), col(EstimatorVersion.estimator))
    )
    age = GaugeMetricFamily(
        "assay_champion_age_seconds", "Time since the champion was fitted", labels=["benchmark", "estimator"]
    )
    for benchmark, estimator, pk in session.exec(champions).all():
        version = session.get_one(EstimatorVersion, pk)
        age.add_metric([benchmark, estimator], _age(version.trained_at or version.created_at))
    yield age


def _events(session: Session) -> Iterator[Metric]:
    waiting: Any = select(func.count(col(Event.id))).where(col(Event.handled_at).is_(None))
    failed: Any = select(func.count(col(Event.id))).where(Event.error != "")
    yield GaugeMetricFamily("assay_events_waiting", "Events not handled yet", session.exec(waiting).one())
    yield CounterMetricFamily("assay_event_failures", "Events whose rule failed", session.exec(failed).one())
    notifications = GaugeMetricFamily("assay_notifications", "Notifications by state", labels=["state"])
    for state, count in outbox.counts(session).items():
        notifications.add_metric([state], count)
    yield notifications
