"""Versions of estimators, and of policies learned on top of them, and their artifacts.

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

from assay.errors import ConflictError, NotFoundError
from storage.tables import Artifact, Benchmark, EstimatorVersion, VersionState, utc_now

__all__ = [
    "artifact_folder",
    "champion",
    "champions",
    "claim_training",
    "complete",
    "crown",
    "fail",
    "find",
    "usable",
    "want",
    "wanted",
]


def usable(
    session: Session, benchmark: Benchmark, estimator: str, params: dict[str, Any]
) -> EstimatorVersion | None:
    """The champion for the present prompts; None = fit one first."""
    query = (
        select(EstimatorVersion)
        .where(
            EstimatorVersion.benchmark_id == benchmark.id,
            EstimatorVersion.estimator == estimator,
            EstimatorVersion.policy == "",
            EstimatorVersion.prompts_revision == benchmark.prompts_revision,
            EstimatorVersion.state == VersionState.CHAMPION,
        )
        .order_by(col(EstimatorVersion.id).desc())
    )
    return next((version for version in session.exec(query).all() if version.params == params), None)


def want(
    session: Session,
    benchmark: Benchmark,
    estimator: str,
    params: dict[str, Any],
    *,
    policy: str = "",
    warm: bool = True,
    reason: str = "",
) -> EstimatorVersion:
    """Ask for a version to be fitted, from the champion on where `warm`; an open request is reused.

    Args:
        session: A writing session.
        benchmark: What it is for.
        estimator: Its estimator.
        params: Parameters of the estimator, or of the policy.
        policy: Learned policy to train for the estimator's champion; "" = fit the estimator itself.
        warm: Whether to start from the present champion.
        reason: Why it is wanted.
    """
    query = select(EstimatorVersion).where(
        EstimatorVersion.benchmark_id == benchmark.id,
        EstimatorVersion.estimator == estimator,
        EstimatorVersion.policy == policy,
        EstimatorVersion.prompts_revision == benchmark.prompts_revision,
        col(EstimatorVersion.state).in_([VersionState.WANTED, VersionState.TRAINING]),
    )
    for version in session.exec(query).all():
        if version.params == params:
            return version
    assert benchmark.id is not None
    parent = champion(session, benchmark.id, estimator, params, policy=policy) if warm else None
    version = EstimatorVersion(
        benchmark_id=benchmark.id,
        estimator=estimator,
        policy=policy,
        params=params,
        parent_id=parent.id if parent else None,
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
    """Lease a wanted (or abandoned) version to a trainer.

    None where somebody else has it, or another version of the same benchmark is being fitted: one at a time.
    """
    now = utc_now()
    if _other_is_training(session, version_id):
        return None
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


def _other_is_training(session: Session, version_id: int) -> bool:
    version = find(session, version_id)
    # The benchmark's row is locked, so that two trainers cannot both find nobody else training.
    session.exec(select(Benchmark.id).where(Benchmark.id == version.benchmark_id).with_for_update()).one()
    query = select(EstimatorVersion.id).where(
        EstimatorVersion.benchmark_id == version.benchmark_id,
        EstimatorVersion.id != version_id,
        EstimatorVersion.state == VersionState.TRAINING,
        col(EstimatorVersion.lease_until) >= utc_now(),
    )
    return session.exec(query).first() is not None


def champion(
    session: Session, benchmark_id: int, estimator: str, params: dict[str, Any], *, policy: str = ""
) -> EstimatorVersion | None:
    """The newest champion of an estimator (or of a policy for it), whatever prompts it was fitted for."""
    query = (
        select(EstimatorVersion)
        .where(
            EstimatorVersion.benchmark_id == benchmark_id,
            EstimatorVersion.estimator == estimator,
            EstimatorVersion.policy == policy,
            EstimatorVersion.state == VersionState.CHAMPION,
        )
        .order_by(col(EstimatorVersion.id).desc())
    )
    return next((version for version in session.exec(query).all() if version.params == params), None)


def champions(session: Session) -> list[EstimatorVersion]:
    """All champions."""
    query = select(EstimatorVersion).where(EstimatorVersion.state == VersionState.CHAMPION)
    return list(session.exec(query.order_by(col(EstimatorVersion.id))).all())


def crown(session: Session, version_id: int, reason: str) -> None:
    """Make a version with an artifact the champion; the present one of the same kind retires.

    Raises:
        ConflictError: It has no artifact.
    """
    version = find(session, version_id)
    if session.exec(select(Artifact.name).where(Artifact.version_id == version_id)).first() is None:
        raise ConflictError(f"estimator version {version_id} is {version.state} and has no artifact")
    for other in champions(session):
        same = _kind(other) == _kind(version)
        if same and other.params == version.params and other.id != version_id:
            other.state = VersionState.RETIRED
            session.add(other)
    version.state, version.reason = VersionState.CHAMPION, reason
    session.add(version)
    session.flush()


def _kind(version: EstimatorVersion) -> tuple[int, str, str]:
    return version.benchmark_id, version.estimator, version.policy


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
    if state == VersionState.CHAMPION:
        crown(session, version_id, reason)
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
    """The version of that number; NotFoundError where there is none."""
    version = session.get(EstimatorVersion, version_id, populate_existing=True)
    if version is None:
        raise NotFoundError(
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
        raise ConflictError(f"estimator version {version_id} is {version.state} and has no artifact")
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent))
    for file in files:
        (building / Path(file.name).name).write_bytes(file.content)
    try:
        building.rename(target)  # whole or not at all, also with two processes at it
    except OSError:
        shutil.rmtree(building)
    return target
