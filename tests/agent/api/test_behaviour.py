"""What the API does, beyond what each route answers."""

from __future__ import annotations

import json
import threading
import time

import pytest

from storage import ledger, studies, tokens
from storage.tables import ApiToken, StudyState
from tests.agent.api.conftest import ROOT, Service, open_service
from tests.agent.api.test_routes import NDJSON, assert_problem


class TestTokens:
    def test_only_a_hash_is_stored(self, service: Service) -> None:
        content = b"".join(path.read_bytes() for path in service.database_files())
        for token in service.tokens.values():
            assert token.split("_", 2)[2].encode() not in content

    def test_secrets_are_compared_in_constant_time_known_or_not(self, service: Service, monkeypatch) -> None:
        compared = []

        def compare(a: str, b: str) -> bool:
            compared.append((len(a), len(b)))
            return a == b

        monkeypatch.setattr("storage.tokens.hmac.compare_digest", compare)
        good = service.tokens["read"]
        for presented in (good, good[:-1] + "x", "assay_ffffffff_x", "nonsense", ""):
            with service.database.read() as session:
                found = tokens.find(session, presented)
            assert (found is not None) == (presented == good)
        assert compared == [(64, 64)] * 5

    def test_revoked_and_expired_tokens_are_refused(self, service: Service) -> None:
        with service.database.begin() as session:
            tokens.revoke(session, "run")
            for token in tokens.list_all(session):
                if token.name == "read":
                    token.expires_at = token.created_at
        for scope in ("run", "read"):
            assert_problem(service.call("GET", "/models", scope), 401)
        assert service.call("GET", "/models", "admin").status_code == 200

    def test_the_last_use_is_noted(self, service: Service) -> None:
        service.call("GET", "/models", "read")
        with service.database.read() as session:
            used = {token.name: token.last_used_at for token in tokens.list_all(session)}
        assert used["read"] is not None
        assert used["run"] is None

    def test_too_many_requests_are_told_to_wait(self, tmp_path) -> None:
        for service in open_service(tmp_path, api_per_minute=3):
            answers = [service.call("GET", "/health", "read") for _ in range(5)]
            assert {a.status_code for a in answers} == {200}
            answers = [service.call("GET", "/models", "read") for _ in range(8)]
            codes = [a.status_code for a in answers]  # a minute may turn in between, once
            assert codes[:3] == [200] * 3
            assert 2 <= codes.count(429) <= 5
            assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
            assert_problem(answers[-1], 429)
            assert service.call("GET", "/models", "run").status_code == 200

    def test_pages_ask_for_a_password_where_reading_needs_a_token(self, locked: Service) -> None:
        answer = locked.client.get("/")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert locked.client.get("/", auth=("anyone", locked.tokens["read"])).status_code == 200
        assert locked.client.get("/", auth=("anyone", "wrong")).status_code == 401
        assert locked.client.get("/healthz").status_code == 200

    def test_a_remembered_password_never_writes(self, service: Service) -> None:
        answer = service.client.post(ROOT + "/studies/2/pause", auth=("x", service.tokens["admin"]))
        assert_problem(answer, 401)


class TestLimits:
    @pytest.mark.parametrize("streamed", [False, True])
    def test_large_bodies_are_refused(self, service: Service, streamed: bool) -> None:
        body = b'{"name": "' + b"x" * 4_100_000 + b'"}'
        sent = iter([body[:3_000_000], body[3_000_000:]]) if streamed else body
        answer = service.call("POST", "/models", content=sent, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"

    def test_bulk_imports_have_a_limit_of_their_own(self, tmp_path) -> None:
        for service in open_service(tmp_path, api_import_mb=5):
            line = json.dumps(
                {"model": "m", "dataset": "d", "prompt_id": "p", "score": 1, "prompt": "x" * 3_000_000}
            )
            for count, status in ((1, 200), (2, 413)):
                answer = service.call(
                    "POST", "/benchmarks/b/scores", content=(line + "\n") * count, headers=NDJSON
                )
                assert answer.status_code == status, answer.text

    @pytest.mark.parametrize(
        ("body", "where"),
        [
            ({"benchmark": "trivia", "methods": []}, "body.methods"),
            ({"benchmark": "trivia", "methods": ["a"], "max_usd": -1}, "body.max_usd"),
            ({"benchmark": "trivia", "methods": ["a"], "polcy": "x"}, "body.polcy"),
            ({"benchmark": "tri\u0000via", "methods": ["a"]}, "body.benchmark"),
        ],
    )
    def test_a_wrong_value_is_named(self, shared: Service, body, where: str) -> None:
        answer = shared.call("POST", "/studies", json=body)
        assert_problem(answer, 422)
        assert answer.json()["errors"][0]["where"] == where

    def test_unknown_names_list_the_known_ones(self, shared: Service) -> None:
        order = {"benchmark": "trivia", "methods": ["dune-34b"], "policy": "stratifeid"}
        answer = shared.call("POST", "/studies", json=order)
        assert_problem(answer, 422)
        assert "did you mean 'stratified'" in answer.json()["hint"]

    def test_what_is_not_json_is_a_problem(self, shared: Service) -> None:
        answer = shared.call("POST", "/models", content="{", headers={"Content-Type": "application/json"})
        assert_problem(answer, 422)

    def test_an_unknown_path_and_method(self, shared: Service) -> None:
        assert_problem(shared.call("GET", "/nothing"), 404)
        assert_problem(shared.call("DELETE", "/models"), 405)

    def test_a_database_that_is_away_is_said(self, service: Service, monkeypatch) -> None:
        from assay.errors import StorageError

        def away(*_: object) -> None:
            raise StorageError("the database is away", "start it")

        monkeypatch.setattr("agent.api._records.page_of", away)
        assert_problem(service.call("GET", "/events"), 503)
        service.client.app.state.database.check = away
        assert_problem(service.call("GET", "/ready", None), 503)


class TestLists:
    def test_come_in_parts_that_fit_together(self, shared: Service) -> None:
        names, after = [], None
        for _ in range(20):
            params = {"limit": 2, "state": "all"} | ({} if after is None else {"after": after})
            part = shared.call("GET", "/models", params=params).json()
            assert len(part["items"]) <= 2
            names += [model["name"] for model in part["items"]]
            after = part["next"]
            if after is None:
                break
        assert len(names) == len(set(names)) == 8
        newest = shared.call("GET", "/models", params={"newest": True, "state": "all"}).json()["items"]
        assert [model["name"] for model in newest] == names[::-1]

    def test_filters(self, shared: Service) -> None:
        def ids(path: str) -> list[int]:
            return [item["id"] for item in shared.call("GET", path).json()["items"]]

        assert ids("/studies?state=running") == [2]
        assert ids("/studies?benchmark=absent") == []
        assert ids("/jobs?study_id=1&state=parked") == [4]
        assert ids("/budgets?scope=overall") == []
        assert [m["name"] for m in shared.call("GET", "/models?state=retired").json()["items"]] == [
            "old-timer"
        ]
        assert ids("/events?kind=rule.failed") != []


class TestLeaderboard:
    def test_is_the_page_s_own_data_with_an_etag(self, shared: Service) -> None:
        answer = shared.call("GET", "/benchmarks/trivia/leaderboard")
        page = shared.client.get("/benchmarks/trivia.json").json()
        told = answer.json()
        for row in [*told["rows"], *page["rows"]]:
            row.pop("age_seconds")
        assert told["rows"] == page["rows"]
        again = shared.call(
            "GET", "/benchmarks/trivia/leaderboard", headers={"If-None-Match": answer.headers["etag"]}
        )
        assert (again.status_code, again.content) == (304, b"")

    def test_a_change_changes_the_etag(self, service: Service) -> None:
        before = service.call("GET", "/benchmarks/trivia/leaderboard").headers["etag"]
        service.call("POST", "/models/amber-70b/retire")
        answer = service.call("GET", "/benchmarks/trivia/leaderboard", headers={"If-None-Match": before})
        assert answer.status_code == 200
        assert len(answer.json()["rows"]) == 4

    def test_estimates_of_one_method_are_its_history(self, shared: Service) -> None:
        newest = shared.call("GET", "/benchmarks/trivia/estimates").json()
        assert [e["method"] for e in newest] == ["dune-34b", "ember-9b"]
        history = shared.call("GET", "/benchmarks/trivia/estimates?method=dune-34b").json()
        assert [e["step"] for e in history] == [1, 2, 3]


class TestDecisions:
    def test_say_why_each_prompt_was_bought(self, shared: Service) -> None:
        found = shared.call("GET", "/studies/1/decisions").json()["items"]
        assert len(found) == 4
        first, last = found[0], found[-1]
        assert (first["policy"], first["version_id"], first["step"]) == ("stratified", 1, 1)
        assert (first["gain"], first["probability"]) == (0.01, 0.25)
        assert (first["expected_cost"], first["cost"], first["score"]) == (1500, 1400, 1.0)
        assert (last["state"], last["cost"], last["score"]) == ("parked", None, None)


class TestScores:
    def rows(self, service: Service, **params: object) -> list[dict]:
        answer = service.call("GET", "/benchmarks/trivia/scores", params=params)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in answer.text.splitlines()]

    def test_what_is_exported_can_be_imported(self, service: Service) -> None:
        rows = self.rows(service)
        body = "".join(json.dumps(row) + "\n" for row in rows)
        report = service.call("POST", "/benchmarks/copy/scores", content=body, headers=NDJSON).json()
        assert report["scores_new"] == report["rows"] == len(rows)
        again = service.call("POST", "/benchmarks/copy/scores", content=body, headers=NDJSON).json()
        assert (again["scores_new"], again["scores_known"]) == (0, len(rows))
        copied = service.call("GET", "/benchmarks/copy/leaderboard").json()["rows"]
        assert [row["method"] for row in copied][:3] == ["amber-70b", "basalt-13b", "cobalt-7b"]

    def test_texts_and_one_method(self, shared: Service) -> None:
        rows = self.rows(shared, method="dune-34b", texts=True)
        assert {row["model"] for row in rows} == {"dune-34b"}
        assert rows[0]["prompt"] == "Question 0.0"

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("{", "line 2: not JSON"),
            ("[]", "line 2: expected a JSON object"),
            ('{"model": "m", "dataset": "d", "prompt_id": "p"}', "line 2: 'score' must be a number"),
            ('{"model": "m", "dataset": "d", "prompt_id": "p", "score": "1"}', "line 2: 'score' must be"),
            ('{"model": "", "dataset": "d", "prompt_id": "p", "score": 1}', "line 2: 'model' is missing"),
            ('{"model": "m", "dataset": "d", "prompt_id": "p", "score": 1.5}', "line 2, column 'score': 1.5"),
            ('{"model": "m", "dataset": "d", "prompt_id": "p", "score": NaN}', "line 2, column 'score'"),
            ('{"model": "m", "dataset": "d", "prompt_id": "p", "scor": 1}', "unknown field 'scor'"),
            ('{"model": "a", "dataset": "d", "prompt_id": "p", "score": 0}', "line 2, column 'score': model"),
        ],
    )
    def test_a_wrong_line_is_named_and_nothing_is_stored(
        self, service: Service, line: str, said: str
    ) -> None:
        good = '{"model": "a", "dataset": "d", "prompt_id": "p", "score": 1}\n'
        answer = service.call("POST", "/benchmarks/fresh/scores", content=good + line, headers=NDJSON)
        assert_problem(answer, 422)
        assert said in answer.json()["detail"]
        assert service.call("GET", "/benchmarks/fresh").status_code == 404

    def test_the_media_type_is_asked_for(self, shared: Service) -> None:
        answer = shared.call("POST", "/benchmarks/b/scores", json={})
        assert_problem(answer, 415)

    def test_a_large_export_is_a_stream_in_order(self, service: Service) -> None:
        lines = [
            json.dumps({"model": f"m{i:03d}", "dataset": "d", "prompt_id": f"p{j:02d}", "score": (i + j) % 2})
            for i in range(100)
            for j in range(50)
        ]
        service.call("POST", "/benchmarks/big/scores", content="\n".join(lines), headers=NDJSON)
        answer = service.call("GET", "/benchmarks/big/scores")
        assert len(answer.text.splitlines()) == 5000
        assert answer.headers.get("content-encoding") == "gzip"


class TestStudies:
    def test_are_ordered_paused_resumed_and_cancelled(self, service: Service) -> None:
        order = {"benchmark": "trivia", "methods": ["dune-34b", "ember-9b"], "max_usd": 0.5, "seed": 3}
        made = service.call("POST", "/studies", json=order).json()
        assert [(s["methods"], s["state"], s["seed"]) for s in made] == [
            (["dune-34b"], "waiting", 3),
            (["ember-9b"], "waiting", 3),
        ]
        assert made[0]["budgets"] == [{"unit": "usd", "cap": 500_000, "spent": 0, "reserved": 0}]
        number = made[0]["id"]
        assert service.call("POST", f"/studies/{number}/pause").json()["state"] == "paused"
        limits = {"max_usd": 2, "max_prompts": 30}
        resumed = service.call("POST", f"/studies/{number}/resume", json=limits).json()
        assert (resumed["state"], resumed["max_prompts"]) == ("running", 30)
        assert resumed["budgets"][0]["cap"] == 2_000_000
        assert service.call("POST", f"/studies/{number}/cancel").json()["state"] == "cancelled"
        assert_problem(service.call("POST", f"/studies/{number}/resume"), 409)

    def test_an_order_that_cannot_be_met_creates_nothing(self, service: Service) -> None:
        order = {"benchmark": "trivia", "methods": ["dune-34b", "absent"]}
        assert_problem(service.call("POST", "/studies", json=order), 404)
        assert len(service.call("GET", "/studies").json()["items"]) == 3

    def test_progress_is_told_until_the_end(self, service: Service) -> None:
        def finish() -> None:
            time.sleep(0.3)
            with service.database.begin() as session:
                studies.move(session, 2, StudyState.DONE, "bought enough")

        thread = threading.Thread(target=finish)
        thread.start()
        text = service.call("GET", "/studies/2/progress?max_s=20").text
        thread.join()
        events = [part.splitlines() for part in text.strip().split("\n\n")]
        assert [event[0] for event in events] == ["event: progress", "event: progress", "event: end"]
        assert [event[1] for event in events] == ["id: 1", "id: 2", "id: 3"]
        assert json.loads(events[1][2].removeprefix("data: "))["state"] == "done"
        assert json.loads(events[2][2].removeprefix("data: "))["reason"] == "bought enough"

    def test_a_stream_ends_after_its_time(self, shared: Service) -> None:
        text = shared.call("GET", "/studies/2/progress?max_s=0").text
        assert text.count("event: ") == 1


class TestBudgets:
    def test_caps_of_every_scope(self, service: Service) -> None:
        made = service.call("PUT", "/budgets/overall/0/usd", json={"cap": 7}).json()
        assert (made["scope"], made["cap"], made["spent"]) == ("overall", 7, 0)
        assert service.call("PUT", "/budgets/benchmark/1/calls", json={"cap": 7}).status_code == 200
        for path in ("/budgets/benchmark/9/usd", "/budgets/overall/1/usd", "/budgets/endpoint/9/usd"):
            assert_problem(service.call("PUT", path, json={"cap": 7}), 404)
        assert_problem(service.call("PUT", "/budgets/overall/0/euros", json={"cap": 7}), 422)

    def test_caps_of_periods_and_endpoints_are_told_apart(self, service: Service) -> None:
        with service.database.begin() as session:
            number = ledger.endpoint_id(session, "http://models.example/v1")
        wanted = {"cap": 3, "period": "day"}
        made = service.call("PUT", f"/budgets/endpoint/{number}/calls", json=wanted).json()
        assert (made["endpoint"], made["period"]) == ("http://models.example/v1", "day")
        service.call("PUT", "/budgets/overall/0/usd", json={"cap": 9})
        service.call("PUT", "/budgets/overall/0/usd", json={"cap": 4, "period": "month"})
        found = service.call("GET", "/budgets?scope=overall", "read").json()["items"]
        assert {(cap["period"], cap["cap"]) for cap in found} == {("total", 9), ("month", 4)}
        assert_problem(service.call("PUT", "/budgets/overall/0/usd", json={"cap": 4, "period": "year"}), 422)


def test_names_may_hold_slashes(service: Service) -> None:
    spec = {"name": "org/model", "backend": "replay", "matrix": "/m", "price": {"free": True}}
    assert service.call("POST", "/models", json=spec).status_code == 201
    assert service.call("POST", "/models", json=spec).status_code == 200
    assert service.call("POST", "/models", json={**spec, "matrix": "/n"}).status_code == 409
    for path in ("/models/org%2Fmodel", "/models/org/model"):
        assert service.call("GET", path).json()["methods"] == ["org/model"]
    assert service.call("POST", "/models/org%2Fmodel/retire").json()["state"] == "retired"


def test_a_model_without_a_price_is_refused(service: Service) -> None:
    spec = {"name": "x", "base_url": "http://127.0.0.1:1/v1"}
    assert_problem(service.call("POST", "/models", json=spec), 422)
    assert service.call("GET", "/models/x").status_code == 404


def test_no_secret_is_in_any_description(shared: Service) -> None:
    assert ApiToken.__name__ not in shared.client.get(f"{ROOT}/openapi.json").text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/templates", {"name": "t", "text": "?"}),
        ("/models", {"name": "m", "backend": "replay", "matrix": "?"}),
        ("/models", {"name": "m?", "backend": "replay", "matrix": "/m"}),
        ("/benchmarks", {"name": "b", "prompts": [{"id": "?", "text": "x"}]}),
        ("/studies", {"benchmark": "trivia", "methods": ["?"]}),
    ],
)
def test_half_a_character_is_refused(shared: Service, path: str, body: dict) -> None:
    said = json.dumps(body).replace("?", "\\ud800")
    answer = shared.call("POST", path, content=said, headers={"Content-Type": "application/json"})
    assert_problem(answer, 422)


def test_half_a_character_in_free_values_is_replaced(service: Service) -> None:
    said = r'{"name": "b", "prompts": [{"id": "x", "text": "x", "fields": {"a": "\ud800"}}]}'
    headers = {"Content-Type": "application/json"}
    assert service.call("POST", "/benchmarks", content=said, headers=headers).status_code == 201
    (prompt,) = service.call("GET", "/benchmarks/b/prompts").json()["items"]
    assert prompt["fields"] == {"a": "\ufffd"}


def test_a_path_with_a_line_break_is_a_problem_too(shared: Service) -> None:
    answer = shared.call("GET", "/models/a%0Ab")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
