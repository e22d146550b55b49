"""Every route of the description: success, missing, forbidden. A route not listed here fails the test."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.agent.api.conftest import ROOT, Service
from tests.agent.api.test_hooks import signed

LINE = json.dumps({"model": "new", "dataset": "set-0", "prompt_id": "p0", "score": 1.0}) + "\n"
NDJSON = {"Content-Type": "application/x-ndjson"}


@dataclass(frozen=True)
class Case:
    """How to call a route so that it succeeds, and what is missing where it names something."""

    path: str
    status: int = 200
    scope: str = "read"
    missing: str | None = None
    given: dict[str, Any] = field(default_factory=dict)


MODEL = {"name": "m", "backend": "replay", "matrix": "/m", "price": {"free": True}}
PROMPTS = {"prompts": [{"id": "x", "dataset": "set-0", "text": "new"}]}

CASES = {
    "GET /health": Case("/health", scope="none"),
    "GET /ready": Case("/ready", scope="none"),
    "GET /models": Case("/models"),
    "POST /models": Case("/models", 201, "run", given={"json": MODEL}),
    "GET /models/{name}": Case("/models/dune-34b", missing="/models/absent"),
    "POST /models/{name}/retire": Case("/models/dune-34b/retire", 200, "run", "/models/absent/retire"),
    "GET /templates": Case("/templates"),
    "POST /templates": Case("/templates", 201, "run", given={"json": {"name": "t", "text": "Say: {text}"}}),
    "GET /templates/{name}": Case("/templates/plain", missing="/templates/absent"),
    "GET /benchmarks": Case("/benchmarks"),
    "POST /benchmarks": Case("/benchmarks", 201, "run", given={"json": {"name": "b"}}),
    "GET /benchmarks/{name}": Case("/benchmarks/trivia", missing="/benchmarks/absent"),
    "GET /benchmarks/{name}/prompts": Case("/benchmarks/trivia/prompts", missing="/benchmarks/x/prompts"),
    "POST /benchmarks/{name}/prompts": Case(
        "/benchmarks/trivia/prompts", 200, "run", "/benchmarks/absent/prompts", {"json": PROMPTS}
    ),
    "GET /benchmarks/{name}/scores": Case("/benchmarks/trivia/scores", missing="/benchmarks/x/scores"),
    "POST /benchmarks/{name}/scores": Case(
        "/benchmarks/trivia/scores", 200, "run", given={"content": LINE, "headers": NDJSON}
    ),
    "GET /benchmarks/{name}/leaderboard": Case(
        "/benchmarks/trivia/leaderboard", missing="/benchmarks/absent/leaderboard"
    ),
    "GET /benchmarks/{name}/estimates": Case(
        "/benchmarks/trivia/estimates", missing="/benchmarks/absent/estimates"
    ),
    "POST /benchmarks/{name}/retrain": Case(
        "/benchmarks/trivia/retrain", 202, "run", "/benchmarks/absent/retrain", {"json": {}}
    ),
    "GET /studies": Case("/studies"),
    "POST /studies": Case(
        "/studies", 201, "run", given={"json": {"benchmark": "trivia", "methods": ["ember-9b"]}}
    ),
    "GET /studies/{study_id}": Case("/studies/1", missing="/studies/99"),
    "POST /studies/{study_id}/pause": Case("/studies/2/pause", 200, "run", "/studies/99/pause"),
    "POST /studies/{study_id}/resume": Case("/studies/4/resume", 200, "run", "/studies/99/resume"),
    "POST /studies/{study_id}/cancel": Case("/studies/2/cancel", 200, "run", "/studies/99/cancel"),
    "GET /studies/{study_id}/decisions": Case("/studies/1/decisions", missing="/studies/99/decisions"),
    "GET /studies/{study_id}/progress": Case("/studies/1/progress", missing="/studies/99/progress"),
    "GET /jobs": Case("/jobs"),
    "GET /jobs/{job_id}": Case("/jobs/1", missing="/jobs/99"),
    "GET /budgets": Case("/budgets"),
    "PUT /budgets/{scope}/{scope_id}/{unit}": Case(
        "/budgets/study/1/usd", 200, "admin", "/budgets/study/99/usd", {"json": {"cap": 5}}
    ),
    "GET /events": Case("/events"),
    "GET /watchers": Case("/watchers"),
    "POST /hooks/mlflow/{watcher}": Case("/hooks/mlflow/registry", 200, "signed", "/hooks/mlflow/absent"),
    "GET /estimators": Case("/estimators"),
    "GET /estimators/{version_id}": Case("/estimators/1", missing="/estimators/99"),
    "POST /estimators/{version_id}/promote": Case(
        "/estimators/1/promote", 409, "admin", "/estimators/99/promote"
    ),
}
WITHOUT_TOKEN = ("none", "signed")
CALLS = [pytest.param(key.split()[0], case, id=key) for key, case in CASES.items()]
GUARDED = [
    pytest.param(key.split()[0], case, id=key)
    for key, case in CASES.items()
    if case.scope not in WITHOUT_TOKEN
]
NAMING = [pytest.param(key.split()[0], case, id=key) for key, case in CASES.items() if case.missing]


def assert_problem(answer: Any, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["hint"]


def test_every_route_of_the_description_is_listed(shared: Service) -> None:
    described = shared.client.get(f"{ROOT}/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert routes == set(CASES)


@pytest.mark.parametrize(("method", "case"), CALLS)
def test_succeeds(service: Service, method: str, case: Case) -> None:
    if case.path == "/studies/4/resume":
        made = service.call("POST", "/studies", json={"benchmark": "trivia", "methods": ["fjord-1b"]})
        assert made.json()[0]["id"] == 4
        service.call("POST", "/studies/4/pause")
    scope = None if case.scope in WITHOUT_TOKEN else case.scope
    given = signed({"name": "bert", "version": "7"}) if case.scope == "signed" else case.given
    answer = service.call(method, case.path, scope, **given)
    assert answer.status_code == case.status, answer.text


@pytest.mark.parametrize(("method", "case"), NAMING)
def test_what_is_missing_is_a_problem(shared: Service, method: str, case: Case) -> None:
    assert case.missing is not None
    assert_problem(shared.call(method, case.missing, **case.given), 404)


@pytest.mark.parametrize(("method", "case"), GUARDED)
@pytest.mark.parametrize("header", ["", "Basic YTpi", "Bearer", "Bearer assay_00000000_x", "Bearer ü"])
def test_a_wrong_token_is_refused(shared: Service, method: str, case: Case, header: str) -> None:
    sent = {"Authorization": header.encode()} | case.given.get("headers", {})
    given = {key: value for key, value in case.given.items() if key != "headers"}
    answer = shared.client.request(method, ROOT + case.path, headers=sent, **given)
    assert_problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("method", "case"), GUARDED)
def test_without_a_token_only_reading_is_open(
    shared: Service, shared_locked: Service, method: str, case: Case
) -> None:
    assert_problem(shared_locked.call(method, case.path, None, **case.given), 401)
    answer = shared.call(method, case.path, None, **case.given)
    assert answer.status_code == (case.status if case.scope == "read" else 401)


@pytest.mark.parametrize(("method", "case"), [c for c in GUARDED if c.values[1].scope != "read"])
def test_a_lesser_scope_is_forbidden(shared: Service, method: str, case: Case) -> None:
    lesser = {"run": "read", "admin": "run"}[case.scope]
    assert_problem(shared.call(method, case.path, lesser, **case.given), 403)


@pytest.mark.parametrize(("method", "case"), CALLS)
def test_every_answer_carries_the_security_headers(shared: Service, method: str, case: Case) -> None:
    answer = shared.call(method, case.path, None, **case.given)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers
    assert "set-cookie" not in answer.headers
