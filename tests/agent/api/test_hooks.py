"""MLflow's webhooks: only signed and fresh ones count, and each version becomes a model once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest

from storage.tables import Model
from tests.agent.api.conftest import SECRET, Service

PATH = "/hooks/mlflow/registry"


def signed(
    data: Any,
    *,
    action: str = "created",
    entity: str = "model_version",
    age: float = 0.0,
    secret: str = SECRET,
) -> dict[str, Any]:
    """A delivery as MLflow makes it (mlflow/webhooks/delivery.py of 3.17)."""
    said = {"entity": entity, "action": action, "timestamp": "2026-11-21T00:00:00+00:00", "data": data}
    return _signed(json.dumps(said).encode(), age, secret)


def _signed(body: bytes, age: float = 0.0, secret: str = SECRET) -> dict[str, Any]:
    delivery, timestamp = "d-1", str(int(time.time() - age))
    content = f"{delivery}.{timestamp}.{body.decode()}".encode()
    signature = base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha256).digest()).decode()
    headers = {
        "Content-Type": "application/json",
        "X-MLflow-Signature": f"v1,{signature}",
        "X-MLflow-Timestamp": timestamp,
        "X-MLflow-Delivery-Id": delivery,
    }
    return {"content": body, "headers": headers}


def models(service: Service) -> list[str]:
    from sqlmodel import select

    with service.database.read() as session:
        return [m.name for m in session.exec(select(Model).where(Model.name.contains(":"))).all()]  # type: ignore[attr-defined]


VERSION = {"name": "bert", "version": "7", "source": "models:/1", "run_id": None, "tags": {}}


def test_a_new_version_becomes_a_model_once(service: Service) -> None:
    for taken in (1, 0):
        answer = service.call("POST", PATH, None, **signed(VERSION))
        assert (answer.status_code, answer.json()) == (200, {"taken": taken})
    assert models(service) == ["bert:7"]
    (line,) = service.call("GET", "/watchers").json()
    assert (line["name"], line["kind"], line["items"], line["refused"]) == ("registry", "mlflow", 1, 0)


@pytest.mark.parametrize("age", [301, -360, 1e8])
def test_a_stale_delivery_is_refused(service: Service, age: float) -> None:
    answer = service.call("POST", PATH, None, **signed(VERSION, age=age))
    assert answer.status_code == 401
    assert "timestamp" in answer.json()["detail"]
    assert models(service) == []


def test_a_wrong_signature_is_refused(service: Service) -> None:
    good = signed(VERSION)
    for header, value in (
        ("X-MLflow-Signature", "v1,AAAA"),
        ("X-MLflow-Signature", ""),
        ("X-MLflow-Timestamp", str(int(time.time()) + 1)),
        ("X-MLflow-Timestamp", "now"),
        ("X-MLflow-Delivery-Id", "d-2"),
    ):
        headers = {**good["headers"], header: value}
        answer = service.call("POST", PATH, None, content=good["content"], headers=headers)
        assert answer.status_code == 401
    bent = good["content"].replace(b"bert", b"bart")
    assert service.call("POST", PATH, None, content=bent, headers=good["headers"]).status_code == 401
    assert service.call("POST", PATH, None, **signed(VERSION, secret="another")).status_code == 401
    assert models(service) == []


def test_signatures_are_compared_in_constant_time(service: Service, monkeypatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return False

    monkeypatch.setattr("agent.api._hooks.hmac.compare_digest", compare)
    assert service.call("POST", PATH, None, **signed(VERSION)).status_code == 401
    assert len(compared) == 1
    assert compared[0][0] == compared[0][1]


def test_other_news_are_passed_over(service: Service) -> None:
    for other in ({"action": "updated"}, {"entity": "registered_model"}):
        assert service.call("POST", PATH, None, **signed(VERSION, **other)).json() == {"taken": 0}
    assert models(service) == []


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"entity": "model_version", "action": "created", "data": 3}']
)
def test_other_content_is_a_problem(service: Service, body: bytes) -> None:
    assert service.call("POST", PATH, None, **_signed(body)).status_code == 422


def test_without_a_secret_nothing_is_taken(service: Service, monkeypatch) -> None:
    monkeypatch.delenv("ASSAY_TEST_HOOK_SECRET")
    answer = service.call("POST", PATH, None, **signed(VERSION, secret=""))
    assert answer.status_code == 503
    assert "ASSAY_TEST_HOOK_SECRET is not set" in answer.json()["detail"]
