"""Fitting versions: claimed by lease, judged on held-out rows, stored whole or not at all.

A version is an estimator, or a policy learned for one.

A version is a challenger. It starts from its parent (the champion), and becomes champion itself only where it
predicts held-out rows better; the artifact, the verdict and the change of champion are one transaction, so a
trainer that is killed at any moment leaves the old champion in place.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import AssayError, StorageError
from assay.logs import log_context
from assay.matrix import ScoreMatrix
from estimators import (
    ESTIMATORS,
    Estimator,
    cold_prompts,
    estimator_for,
    full_rows,
    history_rows,
    load_estimator,
)
from storage import versions
from storage.events import emit
from storage.matrices import StoredMatrix, load_matrix
from storage.tables import Benchmark, EstimatorVersion, VersionState
from workers.calibration import learn_intervals, save_intervals
from workers.embedding import embed_prompts
from workers.execution import WorkerContext
from workers.labelling import label, save_labels
from workers.policy_training import train_and_judge
from workers.rehearsal import rehearse_quantiles, save_factors
from workers.validation import ColdComparison, Validation, compare_on_cold, hold_out, validate

__all__ = ["history_of", "train_version"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Whether a challenger becomes champion, and why."""

    state: VersionState
    reason: str
    facts: dict[str, Any]


def history_of(matrix: ScoreMatrix) -> ScoreMatrix:
    """The rows that an estimator learns from: methods with at least half of the benchmark scored.

    Where prompts are cold, every method that answered one of them teaches something about it.
    """
    return matrix.rows(history_rows(matrix))


def train_version(context: WorkerContext, version_id: int) -> bool:
    """Fit a wanted version; False where somebody else has it or nothing came of it."""
    lease = timedelta(seconds=context.settings.lease_s)
    with context.database.begin() as session:
        version = versions.claim_training(session, version_id, context.owner, lease)
    if version is None:
        return False
    try:
        with log_context(version_id=version_id), _lease_kept(context, version_id, lease):
            return (_train_policy if version.policy else _fit_and_store)(context, version)
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
        stored_matrix = load_matrix(session, benchmark, context.settings.cache_dir)
        revision = benchmark.revision
    matrix = _with_vectors(context, version, stored_matrix)
    history = history_of(matrix)
    held = hold_out(history.method_ids, context.settings.validation_share)
    learned, unseen = history.rows(np.flatnonzero(~held)), history.rows(np.flatnonzero(held))
    parent = _parent(context, version)
    challenger = estimator_for(learned, version.estimator, version.params)
    challenger.fit(learned, warm_start=parent)
    labelling = label(challenger, learned, context.settings.pseudo_label_variance)
    challenger = labelling.estimator if labelling else challenger
    verdict = _judge(challenger, parent, unseen, learned)
    about = {
        "methods": list(learned.method_ids),
        "scores": int(learned.observed.sum()),
        "revision": revision,
        "findings": {**challenger.findings(), **(labelling.findings() if labelling else {})},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        challenger.save(folder)
        save_intervals(learn_intervals(challenger, learned, unseen), folder)
        save_factors(rehearse_quantiles(challenger, learned), folder)
        if labelling:
            save_labels(labelling, folder)
        stored = _store(context, version, folder, about, verdict)
    context.wake()
    return stored


def _train_policy(context: WorkerContext, version: EstimatorVersion) -> bool:
    """Train a learned policy for the estimator's champion, on the rows that the champion learned from."""
    assert version.id is not None
    with context.database.read() as session:
        benchmark = session.get_one(Benchmark, version.benchmark_id)
        base = versions.usable(session, benchmark, version.estimator, {})
        if base is None or base.id is None:
            raise AssayError(
                f"there is no estimator '{version.estimator}' for the present prompts of '{benchmark.name}'",
                f"fit it first: assay retrain {benchmark.name} --estimator {version.estimator}",
            )
        estimator = load_estimator(versions.artifact_folder(session, base.id, context.settings.cache_dir))
        stored = load_matrix(session, benchmark, context.settings.cache_dir)
        revision = benchmark.revision
        parent = version.parent_id and versions.artifact_folder(
            session, version.parent_id, context.settings.cache_dir
        )
    history = history_of(_with_vectors(context, version, stored))
    learned_from = set(base.history["methods"])
    known = np.array([name in learned_from for name in history.method_ids])
    held = hold_out(history.method_ids, context.settings.validation_share) & ~known
    learned, unseen = history.rows(np.flatnonzero(known)), history.rows(np.flatnonzero(held))
    checkpoint = context.settings.cache_dir / "training" / f"{version.id}-{version.created_at:%Y%m%d%H%M%S%f}"
    policy, verdict = train_and_judge(
        version.policy,
        version.params,
        estimator,
        learned,
        unseen,
        parent=Path(parent) if parent else None,
        checkpoint=checkpoint,
    )
    about = {
        "methods": list(learned.method_ids),
        "scores": int(learned.observed.sum()),
        "revision": revision,
        "estimator_version": base.id,
        "findings": policy.findings(),
    }
    with tempfile.TemporaryDirectory() as name:
        policy.save(Path(name))
        stored_now = _store(context, version, Path(name), about, Verdict(*verdict))
    shutil.rmtree(checkpoint, ignore_errors=True)
    context.wake()
    return stored_now


def _with_vectors(context: WorkerContext, version: EstimatorVersion, stored: StoredMatrix) -> ScoreMatrix:
    """The matrix, with prompt vectors where the estimator looks at them, or prompts are without history."""
    looks = ESTIMATORS.get(version.estimator).uses_embeddings
    full = stored.matrix.rows(full_rows(stored.matrix))
    if not looks and not cold_prompts(full).any():
        return stored.matrix
    try:
        vectors = embed_prompts(context.database, stored.columns, context.settings.encoder)
    except AssayError as error:
        if looks:
            raise
        log.warning("new prompts are not embedded: %s", error)
        return stored.matrix
    return replace(stored.matrix, embeddings=vectors)


def _parent(context: WorkerContext, version: EstimatorVersion) -> Estimator | None:
    """The champion that the version starts from, where there is one."""
    if version.parent_id is None:
        return None
    with context.database.read() as session:
        folder = versions.artifact_folder(session, version.parent_id, context.settings.cache_dir)
    return load_estimator(folder)


def _judge(
    challenger: Estimator, champion: Estimator | None, held_out: ScoreMatrix, learned: ScoreMatrix
) -> Verdict:
    if held_out.n_methods == 0:
        reason = "promoted without validation: too few methods to hold any out"
        return Verdict(VersionState.CHAMPION, reason, {"rows": 0})
    own = validate(challenger, held_out, seed=0)
    facts: dict[str, Any] = own.to_json()
    if not np.isfinite(own.loss):
        raise AssayError("its predictions are not finite", "look for constant or contradictory scores")
    if champion is None:
        return Verdict(VersionState.CHAMPION, "the first version", facts)
    if champion.n_prompts_ != held_out.n_prompts:
        return Verdict(VersionState.CHAMPION, "the first version for the present prompts", facts)
    other = validate(champion, held_out, seed=0)
    facts["champion_loss"] = other.loss
    return _compared(own, other, facts, compare_on_cold(challenger, champion, learned))


def _compared(
    own: Validation, other: Validation, facts: dict[str, Any], cold: ColdComparison | None
) -> Verdict:
    mine, theirs = own.loss, other.loss
    said = f"held-out loss {own.loss:.5f} against the champion's {other.loss:.5f}"
    if cold is not None:
        mine, theirs = mine + cold.weight * cold.loss, theirs + cold.weight * cold.champion_loss
        facts |= {"cold_loss": cold.loss, "champion_cold_loss": cold.champion_loss}
        said += f", on new prompts {cold.loss:.5f} against {cold.champion_loss:.5f}"
    return Verdict(VersionState.CHAMPION if mine < theirs else VersionState.REJECTED, said, facts)


def _store(
    context: WorkerContext,
    version: EstimatorVersion,
    folder: Path,
    about: dict[str, Any],
    verdict: Verdict,
) -> bool:
    assert version.id is not None
    with context.database.begin() as session:
        stored = versions.complete(
            session,
            version.id,
            context.owner,
            folder,
            state=verdict.state,
            history=about,
            validation=verdict.facts,
            reason=verdict.reason,
        )
        if stored:
            promoted = verdict.state == VersionState.CHAMPION
            emit(
                session,
                _kind(version, "promoted" if promoted else "rejected"),
                {**_payload(version), "reason": verdict.reason},
            )
    return stored


def _give_up(context: WorkerContext, version: EstimatorVersion, reason: str) -> None:
    assert version.id is not None
    with context.database.begin() as session:
        if versions.fail(session, version.id, reason, owner=context.owner):
            emit(session, _kind(version, "failed"), {**_payload(version), "reason": reason})
    context.wake()


def _kind(version: EstimatorVersion, what: str) -> str:
    return f"{'policy' if version.policy else 'estimator'}.{what}"


def _payload(version: EstimatorVersion) -> dict[str, Any]:
    return {
        "version_id": version.id,
        "benchmark_id": version.benchmark_id,
        "estimator": version.estimator,
        "policy": version.policy,
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
