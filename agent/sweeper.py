"""Returning what died: leases that ran out, messages that were lost, fits that nobody does."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import timedelta

from agent.context import AgentContext
from agent.retraining import want_due
from assay.statuses import Status
from storage import jobs, ledger, versions
from storage.events import emit
from storage.tables import utc_now

__all__ = ["Sweeper"]

SILENT = "its worker stopped answering"


class Sweeper:
    """Looks for work that got stuck and sets it going again; any number of them may run at once."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._training_sent: dict[int, float] = {}

    def sweep(self) -> None:
        """One round."""
        self._turn_periods()
        self._return_expired()
        self._send_again()
        self._send_training()

    def _turn_periods(self) -> None:
        """Begin new periods of budgets; studies that wait for one go on by the event."""
        with self._context.database.read() as session:
            now = utc_now()
            if all(ledger.period_start(b.period, now) <= b.starts_at for b in ledger.periodic(session)):
                return
        with self._context.database.begin() as session:
            ledger.turn_periods(session, ledger.periodic(session))

    def _return_expired(self) -> None:
        """Jobs of silent workers go back; after too many tries they are set aside.

        Whether the last call was billed is not known then, so it is booked at its worst case: a cap that
        holds in the books only would not be one.
        """
        limit = self._context.settings.max_attempts
        again: dict[str, list[int]] = defaultdict(list)
        with self._context.database.read() as session:
            if not jobs.expired(session, limit=1):
                return
        with self._context.database.begin() as session:
            for job in jobs.expired(session):
                assert job.id is not None
                lost = jobs.FailedTry(job.id, job.attempts, Status.LOST, SILENT, unsure=True)
                owner = job.lease_owner or ""
                if job.attempts < limit:
                    if jobs.requeue(session, job.id, SILENT, status=Status.LOST, expired=True):
                        jobs.add_attempts(session, [lost], owner)
                        again[job.kind].append(job.id)
                elif jobs.park(
                    session, job.id, f"{SILENT}, {job.attempts} times", status=Status.LOST, expired=True
                ):
                    jobs.add_attempts(session, [lost], owner)
                    ledger.settle_at_worst(session, [job.id])
                    emit(session, "jobs.finished", {"study_id": job.study_id, "done": 0, "parked": 1})
        self._send(again)

    def _send_again(self) -> None:
        older = timedelta(seconds=self._context.settings.redispatch_s)
        with self._context.database.read() as session:
            if not jobs.undispatched(session, older, limit=1, mark=False):
                return
        again: dict[str, list[int]] = defaultdict(list)
        with self._context.database.begin() as session:
            for job_id, kind in jobs.undispatched(session, older):
                again[kind].append(job_id)
        self._send(again)

    def _send(self, by_kind: dict[str, list[int]]) -> None:
        size = self._context.settings.jobs_per_task
        for kind, ids in by_kind.items():
            for start in range(0, len(ids), size):
                self._context.send_jobs(ids[start : start + size], kind)

    def _gave_up(self, version_id: int) -> bool:
        """Fail a fit whose trainer died at every try (out of memory, say): it would kill the next one too."""
        with self._context.database.read() as session:
            if versions.find(session, version_id).attempts < self._context.settings.max_attempts:
                return False
        with self._context.database.begin() as session:
            version = versions.find(session, version_id)
            about = {"version_id": version_id, "benchmark_id": version.benchmark_id}
            reason = f"its trainer stopped answering, {version.attempts} times"
            failed = versions.fail(session, version_id, reason)
            if failed:
                kind = "policy.failed" if version.policy else "estimator.failed"
                emit(session, kind, {**about, "estimator": version.estimator, "reason": reason})
        return failed

    def _send_training(self) -> None:
        now = time.monotonic()
        with self._context.database.begin() as session:
            want_due(session, self._context.settings)
            wanted = versions.wanted(session)
        for version_id in wanted:
            if self._gave_up(version_id):
                continue
            if now - self._training_sent.get(version_id, -1e9) > self._context.settings.redispatch_s:
                self._training_sent[version_id] = now
                self._context.send_training(version_id)
