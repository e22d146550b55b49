"""Whether the service answers, and whether it can serve."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from agent.api._problems import responses
from agent.wire import Health

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/health")
def health() -> Health:
    """Whether this process answers. Needs no token."""
    return Health(status="ok")


@router.get("/ready", responses=responses(503))
def ready(request: Request, response: Response) -> Health:
    """Whether it can serve: the database is reachable and of this program's schema. Needs no token."""
    request.app.state.database.check()
    return Health(status="ready", database="ok")
