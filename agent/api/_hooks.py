"""Webhooks that other systems send: signed, fresh, and registering each thing once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request
from starlette.concurrency import run_in_threadpool

from agent.api._problems import RefusedError, responses
from agent.watchers import configured, remember_item, version_item
from agent.wire import HookOut, Name
from assay.errors import NotFoundError
from assay.settings import Settings
from assay.specs import WatcherSpec
from storage.database import Database

__all__ = ["router", "signature_of"]

router = APIRouter(tags=["watchers"])

#: A delivery older than this, or so much in the future, is refused: it may be a replay.
FRESH_S = 300
VERSION = "v1"
BODY = {"application/json": {"schema": {"type": "object"}}}


@router.post(
    "/hooks/mlflow/{watcher}",
    openapi_extra={"requestBody": {"required": True, "content": BODY}},
    responses=responses(401, 404, 413, 422, 503),
)
async def mlflow_hook(
    request: Request,
    watcher: Annotated[Name, Path(description="Name of a configured watcher of the kind mlflow.")],
    x_mlflow_signature: Annotated[str, Header(max_length=500)] = "",
    x_mlflow_timestamp: Annotated[str, Header(max_length=50)] = "",
    x_mlflow_delivery_id: Annotated[str, Header(max_length=200)] = "",
) -> HookOut:
    """A webhook of an MLflow registry: a new model version becomes a model, once.

    It carries no token: the signature (HMAC-SHA256 over delivery id, timestamp and body, under the secret in
    the environment variable that the watcher names as `webhook_secret_env`) and a timestamp of the last five
    minutes prove where it is from.
    """
    spec = _watcher(request.app.state.settings, watcher)
    body = await request.body()
    expected = signature_of(_secret(spec), x_mlflow_delivery_id, x_mlflow_timestamp, body)
    if not hmac.compare_digest(expected.encode(), x_mlflow_signature.encode("utf-8", "replace")):
        raise _refused("the signature is wrong")
    if not _fresh(x_mlflow_timestamp):
        raise _refused(f"the timestamp is more than {FRESH_S} seconds away")
    said = _content(body)
    if (said.get("entity"), said.get("action")) != ("model_version", "created"):
        return HookOut(taken=0)
    taken = await run_in_threadpool(_take, request.app.state.database, spec, said.get("data"))
    return HookOut(taken=taken)


def signature_of(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    """MLflow's signature of a delivery, "v1,BASE64"."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return f"{VERSION},{base64.b64encode(digest).decode()}"


def _watcher(settings: Settings, name: str) -> WatcherSpec:
    for spec in configured(settings):
        if spec.kind == "mlflow" and spec.label == name and spec.webhook_secret_env:
            return spec
    raise NotFoundError(
        f"no watcher '{name[:50]}' takes webhooks", "give a [[watch]] of kind mlflow a webhook_secret_env"
    )


def _secret(spec: WatcherSpec) -> str:
    secret = os.environ.get(spec.webhook_secret_env or "")
    if not secret:
        raise RefusedError(
            503, "Not set up", f"{spec.webhook_secret_env} is not set", "set it for the service, as in MLflow"
        )
    return secret


def _refused(why: str) -> RefusedError:
    headers = {"WWW-Authenticate": "Signature"}
    return RefusedError(401, "Not authenticated", why, "use the watcher's secret for the webhook", headers)


def _fresh(timestamp: str) -> bool:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 15):
        return False
    return abs(time.time() - int(timestamp)) <= FRESH_S


def _content(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise RefusedError(422, "Wrong content", "the body is no JSON object", "send MLflow's own webhooks")
    return said


def _take(database: Database, spec: WatcherSpec, data: Any) -> int:
    try:
        item = version_item(spec, str(data["name"]), str(data["version"]))
    except (TypeError, KeyError):
        raise RefusedError(
            422, "Wrong content", "data.name or data.version is missing", "send MLflow's own webhooks"
        ) from None
    return int(remember_item(database, spec, item))
