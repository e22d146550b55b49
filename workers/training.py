"""Fitting an estimator version: claimed by lease, stored whole or not at all."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import AssayError, StorageError
from assay.matrix import ScoreMatrix
from estimators import make_estimator
from storage import versions
from storage.events import emit
from storage.matrices import load_matrix
from storage.tables import Benchmark, EstimatorVersion, VersionState
from workers.execution import WorkerContext

__all__ = ["history_of", "train_version"]

log = logging.getLogger(__name__)

#: A row counts as history once this share of the benchmark's weight is scored.
HISTORY_SHARE = 0.5


def history_of(matrix: ScoreMatrix) -> ScoreMatrix:
    """The rows that an estimator learns from: methods with at least half of the benchmark scored."""
    share = matrix.observed @ matrix.weights
    return matrix.rows(np.flatnonzero(share >= HISTORY_SHARE))


def train_version(context: WorkerContext, version_id: int) -> bool:
    """Fit a wanted version; False where somebody else has it or nothing came of it."""
    lease = timedelta(seconds=context.settings.lease_s)
    with context.database.begin() as session:
        version = versions.claim_training(session, version_id, context.owner, lease)
    if version is None:
        return False
    try:
        with _lease_kept(context, version_id, lease):
            return _fit_and_store(context, version)
    except StorageError as error:  # no fault of the fit: the lease ends, and it is fitted again
        log.warning("estimator version %s is not stored: %s", version_id, error)
    except AssayError as error:
        _give_up(context, version, str(error))
    except Exception as error:
        log.exception("estimator version %s failed unexpectedly", version_id)
        _give_up(context, version, f"unexpected {type(error).__name__}: {error}")
    return False


def _fit_and_store(context: WorkerContext, version: EstimatorVersion) -> bool:
    assert version.id is not None
    with context.database.read() as session:
        benchmark = session.get_one(Benchmark, version.benchmark_id)
        history = history_of(load_matrix(session, benchmark, context.settings.cache_dir).matrix)
        about: dict[str, Any] = {
            "methods": list(history.method_ids),
            "scores": int(history.observed.sum()),
            "revision": benchmark.revision,
        }
    estimator = make_estimator(version.estimator, **version.params).fit(history)
    with tempfile.TemporaryDirectory() as folder:
        estimator.save(Path(folder))
        with context.database.begin() as session:
            stored = versions.complete(
                session,
                version.id,
                context.owner,
                Path(folder),
                state=VersionState.READY,
                history=about,
                validation={},
            )
            if stored:
                emit(session, "estimator.ready", _payload(version))
    context.wake()
    return stored


def _give_up(context: WorkerContext, version: EstimatorVersion, reason: str) -> None:
    assert version.id is not None
    with context.database.begin() as session:
        if versions.fail(session, version.id, reason, owner=context.owner):
            emit(session, "estimator.failed", {**_payload(version), "reason": reason})
    context.wake()


def _payload(version: EstimatorVersion) -> dict[str, Any]:
    return {
        "version_id": version.id,
        "benchmark_id": version.benchmark_id,
        "estimator": version.estimator,
    }


@contextmanager
def _lease_kept(context: WorkerContext, version_id: int, lease: timedelta) -> Iterator[None]:
    """Renew the lease in a thread while the fit has the processor."""
    done = threading.Event()

    def keep() -> None:
        while not done.wait(lease.total_seconds() / 3):
            try:
                with context.database.begin() as session:
                    versions.renew(session, version_id, context.owner, lease)
            except AssayError as error:
                log.warning("training lease not renewed: %s", error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
