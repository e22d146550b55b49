"""Estimator versions and their artifacts.

An artifact is stored together with the state that makes its version usable, in one transaction: a version is
either complete or not there. The artifact's folder on disk is a cache.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import or_, update
from sqlmodel import Session, col, select

from assay.errors import UsageError
from storage.tables import Artifact, Benchmark, EstimatorVersion, VersionState, utc_now

__all__ = [
    "USABLE",
    "artifact_folder",
    "claim_training",
    "complete",
    "fail",
    "find",
    "usable",
    "want",
    "wanted",
]

USABLE = (VersionState.CHAMPION, VersionState.READY)


def usable(
    session: Session, benchmark: Benchmark, estimator: str, params: dict[str, Any]
) -> EstimatorVersion | None:
    """The version to use now: the champion, else the newest ready one; None = fit one first."""
    query = (
        select(EstimatorVersion)
        .where(
            EstimatorVersion.benchmark_id == benchmark.id,
            EstimatorVersion.estimator == estimator,
            EstimatorVersion.prompts_revision == benchmark.prompts_revision,
            col(EstimatorVersion.state).in_(USABLE),
        )
        .order_by(
            col(EstimatorVersion.state), col(EstimatorVersion.id).desc()
        )  # "champion" sorts before "ready"
    )
    return next((version for version in session.exec(query).all() if version.params == params), None)


def want(
    session: Session,
    benchmark: Benchmark,
    estimator: str,
    params: dict[str, Any],
    *,
    parent_id: int | None = None,
    reason: str = "",
) -> EstimatorVersion:
    """Ask for a version to be fitted; a request that is open already is returned instead."""
    query = select(EstimatorVersion).where(
        EstimatorVersion.benchmark_id == benchmark.id,
        EstimatorVersion.estimator == estimator,
        EstimatorVersion.prompts_revision == benchmark.prompts_revision,
        col(EstimatorVersion.state).in_([VersionState.WANTED, VersionState.TRAINING]),
    )
    for version in session.exec(query).all():
        if version.params == params:
            return version
    assert benchmark.id is not None
    version = EstimatorVersion(
        benchmark_id=benchmark.id,
        estimator=estimator,
        params=params,
        parent_id=parent_id,
        prompts_revision=benchmark.prompts_revision,
        reason=reason,
    )
    session.add(version)
    session.flush()
    return version


def wanted(session: Session) -> list[int]:
    """Versions that nobody is fitting: new ones, and those whose trainer died."""
    query = select(EstimatorVersion.id).where(
        or_(
            col(EstimatorVersion.state) == VersionState.WANTED,
            (col(EstimatorVersion.state) == VersionState.TRAINING)
            & (col(EstimatorVersion.lease_until) < utc_now()),
        )
    )
    return [int(i) for i in session.exec(query).all() if i is not None]


def claim_training(
    session: Session, version_id: int, owner: str, lease: timedelta
) -> EstimatorVersion | None:
    """Lease a wanted (or abandoned) version to a trainer; None where somebody else has it."""
    now = utc_now()
    statement = (
        update(EstimatorVersion)
        .where(col(EstimatorVersion.id) == version_id)
        .where(
            or_(
                col(EstimatorVersion.state) == VersionState.WANTED,
                (col(EstimatorVersion.state) == VersionState.TRAINING)
                & (col(EstimatorVersion.lease_until) < now),
            )
        )
        .values(
            state=VersionState.TRAINING,
            lease_owner=owner,
            lease_until=now + lease,
            attempts=EstimatorVersion.attempts + 1,
        )
    )
    if not session.connection().execute(statement).rowcount:
        return None
    return session.get(EstimatorVersion, version_id, populate_existing=True)


def renew(session: Session, version_id: int, owner: str, lease: timedelta) -> bool:
    """Extend a trainer's lease; False where it was lost."""
    statement = (
        update(EstimatorVersion)
        .where(col(EstimatorVersion.id) == version_id, col(EstimatorVersion.lease_owner) == owner)
        .where(col(EstimatorVersion.state) == VersionState.TRAINING)
        .values(lease_until=utc_now() + lease)
    )
    return bool(session.connection().execute(statement).rowcount)


def complete(
    session: Session,
    version_id: int,
    owner: str,
    folder: Path,
    *,
    state: VersionState,
    history: dict[str, Any],
    validation: dict[str, Any],
    reason: str = "",
) -> bool:
    """Store a fitted estimator's files and its state at once; False where the lease was lost meanwhile."""
    statement = (
        update(EstimatorVersion)
        .where(col(EstimatorVersion.id) == version_id, col(EstimatorVersion.lease_owner) == owner)
        .where(col(EstimatorVersion.state) == VersionState.TRAINING)
        .values(
            state=state,
            history=history,
            validation=validation,
            reason=reason,
            trained_at=utc_now(),
            lease_until=None,
        )
    )
    if not session.connection().execute(statement).rowcount:
        return False
    for file in sorted(folder.iterdir()):
        session.add(Artifact(version_id=version_id, name=file.name, content=file.read_bytes()))
    session.flush()
    return True


def fail(session: Session, version_id: int, reason: str, *, owner: str | None = None) -> bool:
    """Mark a version that is being fitted as one that cannot be; False where there was nothing to mark.

    Args:
        session: A writing session.
        version_id: The version.
        reason: Why, in one line.
        owner: The trainer, which must still hold the lease; None = nobody may hold it any more.
    """
    lost = col(EstimatorVersion.lease_until) < utc_now()
    held = lost if owner is None else col(EstimatorVersion.lease_owner) == owner
    statement = (
        update(EstimatorVersion)
        .where(col(EstimatorVersion.id) == version_id, held)
        .where(col(EstimatorVersion.state) == VersionState.TRAINING)
        .values(state=VersionState.FAILED, reason=reason[:2000], lease_until=None)
    )
    return bool(session.connection().execute(statement).rowcount)


def find(session: Session, version_id: int) -> EstimatorVersion:
    """The version of that number; UsageError where there is none."""
    version = session.get(EstimatorVersion, version_id, populate_existing=True)
    if version is None:
        raise UsageError(
            f"there is no estimator version {version_id}", "list them with: assay estimators list"
        )
    return version


def artifact_folder(session: Session, version_id: int, cache: Path) -> Path:
    """A folder that holds the version's files, written from the database where it is not cached yet."""
    version = find(session, version_id)
    stamp = version.created_at.strftime("%Y%m%d%H%M%S%f")  # a new database may reuse the number
    target = cache / "estimators" / f"{version_id}-{stamp}"
    if target.exists():
        return target
    files: Sequence[Artifact] = session.exec(select(Artifact).where(Artifact.version_id == version_id)).all()
    if not files:
        raise UsageError(f"estimator version {version_id} is {version.state} and has no artifact")
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent))
    for file in files:
        (building / Path(file.name).name).write_bytes(file.content)
    try:
        building.rename(target)  # whole or not at all, also with two processes at it
    except OSError:
        shutil.rmtree(building)
    return target
