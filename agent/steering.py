"""Steering a study by hand: the same for the command, the page and the API."""

from __future__ import annotations

from sqlmodel import Session

from storage import jobs, ledger, studies
from storage.tables import StudyState

__all__ = ["pause", "resume"]


def pause(session: Session, study_id: int) -> None:
    """Stop asking for more; what is on its way still arrives.

    Raises:
        UsageError: There is no such study, or it is final.
    """
    studies.move(session, study_id, StudyState.PAUSED, "paused by hand")


def resume(
    session: Session, study_id: int, *, usd_cap: int | None = None, max_prompts: int | None = None
) -> None:
    """Go on with a paused or failed study; prompts whose calls failed unpaid may be chosen again.

    Args:
        session: A writing session.
        study_id: The study.
        usd_cap: New hard cap in micro-dollars.
        max_prompts: New greatest number of prompts.

    Raises:
        UsageError: There is no such study, or it is final.
    """
    study = studies.find(session, study_id)
    jobs.free_unpaid(session, study_id)
    if usd_cap is not None:
        ledger.set_cap(session, "study", study_id, "usd", usd_cap)
    if max_prompts is not None:
        study.max_prompts = max_prompts
        session.add(study)
    state = StudyState.WAITING if study.state == StudyState.FAILED else StudyState.RUNNING
    studies.move(session, study_id, state)
