"""The typed client against the real application; docs/api.md's examples run as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from agent.client import ApiError, Client
from agent.wire import BenchmarkIn, PromptsIn, ResumeIn, RetrainIn, ScoreRow, StudyIn, TemplateIn
from assay.specs import ModelSpec, Price, PromptSpec
from tests.agent.api.conftest import Service

DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"


class Through(httpx.BaseTransport):
    """Carries the client's requests into the application under test."""

    def __init__(self, inner: TestClient) -> None:
        self.inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = b"".join(request.stream)  # type: ignore[arg-type]
        answer = self.inner.request(
            request.method,
            str(request.url.copy_with(host="testserver")),
            headers=request.headers,
            content=content,
        )
        headers = {k: v for k, v in answer.headers.items() if k not in ("content-encoding", "content-length")}
        return httpx.Response(answer.status_code, headers=headers, content=answer.content)


@pytest.fixture
def assay(service: Service) -> Iterator[Client]:
    with Client("http://assay", token=service.tokens["admin"], transport=Through(service.client)) as client:
        yield client


def test_models_and_templates(assay: Client) -> None:
    added = assay.add_model(ModelSpec(name="org/new", backend="replay", matrix="/m", price=Price(free=True)))
    assert assay.model("org/new") == added
    assert len(list(assay.models(state="all"))) == 9
    assert assay.retire_model("org/new").state == "retired"
    template = assay.add_template(TemplateIn(name="terse", text="{text} In one word."))
    assert assay.template("terse") == template
    assert [found.name for found in assay.templates()] == ["plain", "terse"]


def test_benchmarks_and_prompts(assay: Client) -> None:
    assert assay.create_benchmark(BenchmarkIn(name="geo")).added == 0
    prompts = PromptsIn(prompts=[PromptSpec(id=f"p{i}", text=f"What is {i}?") for i in range(250)])
    assert assay.add_prompts("geo", prompts).added == 250
    assert [prompt.key for prompt in assay.prompts("geo")] == [f"p{i}" for i in range(250)]
    assert [found.name for found in assay.benchmarks()] == ["trivia", "geo"]
    assert assay.benchmark("geo").prompts == 250


def test_scores_travel_both_ways(assay: Client) -> None:
    rows = list(assay.export_scores("trivia", texts=True))
    report = assay.import_scores("copy", rows)
    assert report.scores_new == len(rows)
    assert sorted(map(str, assay.export_scores("copy", texts=True))) == sorted(map(str, rows))
    assert isinstance(rows[0], ScoreRow)


def test_a_leaderboard_is_read_once(assay: Client) -> None:
    first = assay.leaderboard("trivia")
    assert first.rows[0].method == "amber-70b"
    assert assay.leaderboard("trivia") is first
    assay.retire_model("amber-70b")
    assert assay.leaderboard("trivia").rows[0].method != "amber-70b"
    assert [e.method for e in assay.estimates("trivia")] == ["dune-34b", "ember-9b"]


def test_studies(assay: Client) -> None:
    (study,) = assay.create_studies(StudyIn(benchmark="trivia", methods=["ember-9b"], max_usd=0.5))
    assert assay.pause(study.id).state == "paused"
    assert assay.resume(study.id, ResumeIn(max_prompts=5)).max_prompts == 5
    assert assay.cancel(study.id).state == "cancelled"
    assert [now.state for now in assay.follow(study.id)] == ["cancelled"]
    assert assay.study(study.id).state == "cancelled"
    assert [found.id for found in assay.studies(state="cancelled")] == [study.id]
    assert [d.probability for d in assay.decisions(1)] == [0.25] * 4


def test_records(assay: Client) -> None:
    assert [job.id for job in assay.jobs(study_id=1, state="parked")] == [4]
    assert assay.job(4).state == "parked"
    assert assay.set_budget("overall", 0, "usd", 5).cap == 5
    assert [budget.cap for budget in assay.budgets(scope="overall")] == [5]
    events = list(assay.events())
    assert [event.id for event in assay.events(after=events[-2].id)] == [events[-1].id]
    wanted = assay.retrain("trivia", RetrainIn(cold=True))
    assert assay.version(wanted.id).state == "wanted"
    assert len(list(assay.versions(benchmark="trivia"))) == 2
    with pytest.raises(ApiError) as caught:
        assay.promote(wanted.id)
    assert caught.value.status == 409


def test_a_refusal_says_what_to_do(assay: Client) -> None:
    with pytest.raises(ApiError, match="unknown benchmark 'absent'") as caught:
        assay.leaderboard("absent")
    assert (caught.value.status, caught.value.hint) == (404, "known: trivia")
    with pytest.raises(ApiError, match="no study 99"):
        list(assay.follow(99))


def test_a_service_that_is_away_is_said() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(ApiError, match="does not answer"):
        client.leaderboard("trivia")


def test_the_examples_of_the_manual_run(service: Service, assay: Client, monkeypatch, capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    monkeypatch.setenv("ASSAY_TOKEN", service.tokens["admin"])
    monkeypatch.setattr("agent.client.httpx.Client", _through(service, httpx.Client))
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), {})
    assert "amber-70b" in capsys.readouterr().out


def _through(service: Service, kind: type[httpx.Client]):
    def make(**given):
        return kind(**{**given, "transport": Through(service.client)})

    return make
