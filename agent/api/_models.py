"""Models and templates."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request, Response
from sqlmodel import Session, col, select

from agent.api._access import Reader, Reading, Runner
from agent.api._lists import Listing, page_of
from agent.api._problems import responses
from agent.registration import check_model
from agent.wire import ModelOut, Page, TemplateIn, TemplateOut
from assay.errors import BadInputError, ConflictError
from assay.specs import ModelSpec
from storage import catalog
from storage.tables import Method, Model, Template

__all__ = ["router"]

router = APIRouter()

EXAMPLE = {
    "name": "llama-3-8b",
    "backend": "openai",
    "base_url": "http://127.0.0.1:8000/v1",
    "model": "meta-llama/Meta-Llama-3-8B-Instruct",
    "price": {"input_per_million": 0.2, "output_per_million": 0.6},
}


@router.get("/models", dependencies=Reader, tags=["models"], responses=responses(401, 403, 422, 429, 503))
def list_models(
    session: Reading,
    cursor: Listing,
    state: Annotated[Literal["active", "retired", "all"], Query()] = "active",
) -> Page[ModelOut]:
    """Models, with their methods."""
    query = select(Model)
    if state != "all":
        gone = col(Model.retired_at)
        query = query.where(gone.is_not(None) if state == "retired" else gone.is_(None))
    return page_of(session, query, Model.id, cursor, lambda model: _shown(session, model), lambda m: m.id)


@router.post(
    "/models",
    status_code=201,
    dependencies=Runner,
    tags=["models"],
    responses={200: {"model": ModelOut}, **responses(400, 401, 403, 409, 413, 422, 429, 503)},
)
def add_model(
    request: Request, response: Response, spec: Annotated[ModelSpec, Body(examples=[EXAMPLE])]
) -> ModelOut:
    """Register a model; the agent then evaluates it on every matching benchmark.

    201 where it is new, 200 where it was there with the same description, 409 where with another.
    """
    check_model(spec)
    with request.app.state.database.begin() as session:
        try:
            model, new = catalog.add_model(session, spec)
        except BadInputError as error:
            raise ConflictError(error.message, error.hint) from None
        response.status_code = 201 if new else 200
        return _shown(session, model)


@router.post(
    "/models/{name:path}/retire",
    dependencies=Runner,
    tags=["models"],
    responses=responses(401, 403, 404, 422, 429, 503),
)
def retire_model(request: Request, name: str) -> ModelOut:
    """Take a model off the leaderboards; its scores stay."""
    with request.app.state.database.begin() as session:
        return _shown(session, catalog.retire_model(session, name))


@router.get(
    "/models/{name:path}",
    dependencies=Reader,
    tags=["models"],
    responses=responses(401, 403, 404, 422, 429, 503),
)
def get_model(session: Reading, name: str) -> ModelOut:
    """A model by its name."""
    return _shown(session, catalog.find_model(session, name))


def _shown(session: Session, model: Model) -> ModelOut:
    methods = session.exec(select(Method.name).where(Method.model_id == model.id).order_by(col(Method.id)))
    return ModelOut(
        id=model.id or 0,
        name=model.name,
        backend=model.backend,
        spec={key: value for key, value in model.spec.items() if value is not None},
        attributes=model.attributes,
        state="retired" if model.retired_at else "active",
        methods=list(methods.all()),
        created_at=model.created_at,
        retired_at=model.retired_at,
    )


@router.get(
    "/templates", dependencies=Reader, tags=["templates"], responses=responses(401, 403, 422, 429, 503)
)
def list_templates(session: Reading, cursor: Listing) -> Page[TemplateOut]:
    """Templates."""
    return page_of(
        session, select(Template), Template.id, cursor, TemplateOut.model_validate, lambda found: found.id
    )


@router.post(
    "/templates",
    status_code=201,
    dependencies=Runner,
    tags=["templates"],
    responses={200: {"model": TemplateOut}, **responses(400, 401, 403, 409, 413, 422, 429, 503)},
)
def add_template(request: Request, response: Response, wanted: TemplateIn) -> TemplateOut:
    """Add a template; 200 where it is there with the same text, 409 where with another."""
    with request.app.state.database.begin() as session:
        template, new = catalog.add_template(session, wanted.name, wanted.text)
        response.status_code = 201 if new else 200
        return TemplateOut.model_validate(template)


@router.get(
    "/templates/{name:path}",
    dependencies=Reader,
    tags=["templates"],
    responses=responses(401, 403, 404, 422, 429, 503),
)
def get_template(session: Reading, name: str) -> TemplateOut:
    """A template by its name."""
    return TemplateOut.model_validate(catalog.find_template(session, name))
