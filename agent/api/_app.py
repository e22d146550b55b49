"""The API application: routers, errors, limits and its description."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from agent.api import _benchmarks, _health, _hooks, _models, _records, _scores, _studies
from agent.api._access import Access
from agent.api._limits import BodyLimit
from agent.api._problems import add_handlers
from agent.boards import Boards, Shared
from agent.body import Body
from agent.wire import Problem
from assay import __version__
from assay.settings import Settings
from storage.database import Database

__all__ = ["create_api"]

#: The longer paths first: a name may hold slashes.
MODULES = (_health, _studies, _scores, _records, _hooks, _benchmarks, _models)
MEGABYTE = 1_000_000
BODIES = 32  # leaderboards kept as they are sent
DESCRIPTION = """\
Keeps LLM leaderboards true at a fraction of their cost.

Reading needs no token unless the server asks for one (`ASSAY_REQUIRE_TOKEN`); everything else needs
`Authorization: Bearer TOKEN` with the scope *run* (models, benchmarks, studies, imports) or *admin* (caps,
champions). Errors are `application/problem+json` with a `hint` that says what to do. Lists come in parts:
`next` of one is `after` of the following. Amounts are whole micro-dollars unless named `_usd`.
"""


def create_api(settings: Settings, database: Database, boards: Boards) -> FastAPI:
    """The API over one database, to be mounted under /api/v1.

    Args:
        settings: The configuration.
        database: The database; no connection is opened before the first request.
        boards: Leaderboards, shared with the pages.
    """
    api = FastAPI(title="Assay", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    api.state.settings = settings
    api.state.database = database
    api.state.boards = boards
    api.state.bodies = Shared[Body](BODIES)
    api.state.access = Access(database, settings)
    for module in MODULES:
        api.include_router(module.router)
    api.state.routes = [route for module in MODULES for route in module.router.routes]
    api.add_middleware(BodyLimit, import_bytes=settings.api_import_mb * MEGABYTE)
    add_handlers(api)
    api.openapi = lambda: _described(api)  # type: ignore[method-assign]
    return api


def _described(api: FastAPI) -> dict[str, Any]:
    """The description, with the shape of problems, which no route returns by itself."""
    if api.openapi_schema is None:
        described = get_openapi(
            title=api.title, version=api.version, description=api.description, routes=api.routes
        )
        shape = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        inner = shape.pop("$defs", {})
        described["components"]["schemas"] |= {"Problem": shape, **inner}
        if api.state.access.open_reading:
            _say_reading_is_open(described)
        described["servers"] = [{"url": "/api/v1"}]
        api.openapi_schema = described
    return api.openapi_schema


def _say_reading_is_open(described: dict[str, Any]) -> None:
    """A token is welcome, but not needed."""
    for operations in described["paths"].values():
        if "security" in operations.get("get", {}):
            operations["get"]["security"].append({})
