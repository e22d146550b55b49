"""Studies whose scorer is a judge: answers first, then verdicts, under the same caps, each bought once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.costs import Purchase, priced_purchases, specs_of
from agent.registration import add_prompts
from assay.errors import AssayError, BadInputError
from assay.specs import DatasetSpec, ModelSpec, PromptSpec
from storage import catalog, jobs, ledger, studies
from storage.jobs import NewJob
from storage.ledger import Charge
from storage.matrices import load_columns
from storage.preferences import known_preferences, ordered_pair
from storage.tables import Budget, Job, JobState, Method, Preference, Scorer, StudyState
from tests.workers.endpoint import Endpoint, completion, serving
from tests.world import BENCHMARK, World

PROMPTS = 8
ANSWER_PRICE = {"input_per_million": 1.0, "output_per_million": 2.0}
JUDGE_PRICE = {"input_per_million": 10.0, "output_per_million": 20.0}
ANSWER_COST, VERDICT_COST = 10 + 2 * 2, 10 * 10 + 20 * 2  # micro-dollars; every call takes 10 + 2 tokens


class Roles:
    """Answers as the model or as a judge, by the model that is asked for; counts both."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.verdict: Any = lambda text, times: json.dumps({"reason": "fine", "score": 10})

    def __call__(self, body: dict[str, Any]) -> dict[str, Any] | int:
        text = body["messages"][-1]["content"]
        if not body["model"].startswith("judge"):
            self.answered[text] += 1
            return completion(f"answer to {text} by {body['model']}")
        self.judged[text] += 1
        found = self.verdict(text, self.judged[text])
        return found if isinstance(found, int | dict) else completion(found)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as running:
        running.responder = Roles()
        yield running


@pytest.fixture
def roles(endpoint: Endpoint) -> Roles:
    assert isinstance(endpoint.responder, Roles)
    return endpoint.responder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World.open(tmp_path, estimator="aggregate")
    yield opened
    opened.database.close()


def add_judge(world: World, endpoint: Endpoint, name: str = "judge-a", **spec: Any) -> None:
    given = {"base_url": endpoint.url, "price": JUDGE_PRICE, "max_tokens": 50, "benchmarks": [], **spec}
    world.add_model(name, **given)


def add_benchmark(
    world: World, name: str = BENCHMARK, *, judge: str = "judge-a", scorer: str = "judge-score", **params: Any
) -> None:
    spec = DatasetSpec(
        name="open", scorer=scorer, scorer_params={"judge": judge, **params}, score_type="real"
    )
    prompts = [
        PromptSpec(id=f"p{i}", dataset="open", text=f"Tell me about {i}", fields={"reference": f"ref {i}"})
        for i in range(PROMPTS)
    ]
    with world.database.begin() as session:
        add_prompts(session, name, [spec], prompts)


def add_method(world: World, endpoint: Endpoint, name: str = "m", **spec: Any) -> int:
    return world.add_model(name, base_url=endpoint.url, price=ANSWER_PRICE, max_tokens=20, **spec)


def study_on(world: World, method: int, benchmark: str = BENCHMARK, **request: Any) -> int:
    with world.database.begin() as session:
        found = catalog.find_benchmark(session, benchmark)
        given = {"policy": "stratified", "estimator": "aggregate", "batch_size": 3, **request}
        given.setdefault("caps", {"usd": 1_000_000})
        wanted = studies.StudyRequest(benchmark_id=found.id or 0, method_ids=[method], **given)
        study = studies.create(session, wanted)
        assert study is not None
        return int(study.id or 0)


def dearest_cell(world: World, method: int) -> int:
    """Micro-dollars that an answer and its verdict can cost at most."""
    with world.database.read() as session:
        columns = load_columns(session, catalog.find_benchmark(session, BENCHMARK))
        methods = [session.get_one(Method, method)]
        cells = [(0, column) for column in range(PROMPTS)]
        purchases = priced_purchases(session, columns, methods, specs_of(session, methods), cells)
    return max(one.whole.usd for one in purchases)


@pytest.fixture
def ready(world: World, endpoint: Endpoint) -> tuple[World, int]:
    """A judge, a benchmark that it scores, and a model to evaluate."""
    add_judge(world, endpoint)
    add_benchmark(world)
    return world, add_method(world, endpoint)


def test_answers_are_bought_then_judged(ready: tuple[World, int], roles: Roles) -> None:
    world, method = ready
    study = study_on(world, method)
    world.settle()
    assert world.study(study).state == StudyState.DONE, world.study(study).reason
    assert [score.value for score in world.acquired()] == [1.0] * PROMPTS
    kinds = Counter((job.kind, job.state) for job in world.jobs(study))
    assert kinds == {("inference", "done"): PROMPTS, ("judge", "done"): PROMPTS}
    assert set(roles.answered.values()) == set(roles.judged.values()) == {1}
    assert len(world.outputs()) == PROMPTS
    judged = {score.job_id for score in world.acquired()}
    assert judged == {job.id for job in world.jobs(study) if job.kind == "judge"}
    world.check_money()
    assert world.budget(study).spent == PROMPTS * (ANSWER_COST + VERDICT_COST)


def test_the_verdict_sees_the_answer_and_is_kept_with_its_words(
    ready: tuple[World, int], endpoint: Endpoint
) -> None:
    world, method = ready
    study = study_on(world, method, max_prompts=1)
    world.settle()
    asked = endpoint.asked[-1]
    assert "answer to Tell me about" in asked["messages"][0]["content"]
    assert asked["response_format"]["json_schema"]["strict"] is True
    (job,) = [job for job in world.jobs(study) if job.kind == "judge"]
    verdict = job.details["verdict"]
    assert (verdict["status"], verdict["reason"]) == ("scored", "fine")
    assert verdict["usage"] == {"calls": 1, "input_tokens": 10, "output_tokens": 2}
    assert job.probability == world.jobs(study)[0].probability  # how the cell was drawn is not forgotten


def test_a_cell_counts_once_against_max_prompts(ready: tuple[World, int]) -> None:
    world, method = ready
    study = study_on(world, method, max_prompts=5)
    world.settle()
    assert world.study(study).reason == "bought 5 of at most 5 prompts"
    assert len(world.acquired()) == 5


def test_judging_again_never_infers_again(ready: tuple[World, int], endpoint: Endpoint, roles: Roles) -> None:
    """The same prompts in another benchmark with another judge: the answers are there already."""
    world, method = ready
    study_on(world, method)
    world.settle()
    before = roles.answered.copy()
    add_judge(world, endpoint, "judge-b")
    add_benchmark(world, "again", judge="judge-b")
    add_benchmark(world, "stricter", judge="judge-a", rubric="Is it short?")
    for name in ("again", "stricter"):
        study = study_on(world, method, name)
        world.settle()
        assert world.study(study).state == StudyState.DONE
        assert {job.kind for job in world.jobs(study)} == {"judge"}
        assert world.budget(study).spent == PROMPTS * VERDICT_COST
    assert roles.answered == before
    assert len(world.acquired()) == 3 * PROMPTS
    assert len({score.scorer_id for score in world.acquired()}) == 3
    world.check_money()


def test_two_judges_are_two_scorers_and_the_same_is_one(world: World, endpoint: Endpoint) -> None:
    for name in ("judge-a", "judge-b"):
        add_judge(world, endpoint, name)
    add_benchmark(world, "one")
    add_benchmark(world, "two")
    add_benchmark(world, "three", judge="judge-b")
    add_benchmark(world, "four", rubric="Is it funny?")
    assert len(world.rows(Scorer)) == 3
    with pytest.raises(BadInputError, match="another scorer"):
        add_benchmark(world, "one", judge="judge-b")


@pytest.mark.parametrize(
    ("verdict", "reason", "calls"),
    [
        ("no JSON here", "malformed verdict: it holds no JSON object", 2),
        ("", "empty verdict", 1),
        (completion("", "content_filter"), "refused verdict", 1),
        (completion('{"score": 1', "length"), "truncated verdict", 1),
    ],
)
def test_no_verdict_is_set_aside_with_its_reason_and_paid_for(
    ready: tuple[World, int], roles: Roles, verdict: Any, reason: str, calls: int
) -> None:
    world, method = ready
    roles.verdict = lambda text, times: verdict
    study = study_on(world, method, max_prompts=3)
    world.settle()
    assert world.acquired() == []
    parked = [job for job in world.jobs(study) if job.state == JobState.PARKED]
    assert len(parked) == 3
    assert all(job.kind == "judge" and job.reason.startswith(reason) for job in parked)
    world.check_money()
    assert world.budget(study).spent == 3 * (ANSWER_COST + calls * VERDICT_COST)


def test_replies_before_a_failure_are_not_bought_again(
    world: World, endpoint: Endpoint, roles: Roles
) -> None:
    """The second order fails at first: the next try asks for that one alone."""
    add_judge(world, endpoint)
    add_benchmark(world, scorer="judge-pairwise")
    seen: set[str] = set()

    def second_order_fails_once(text: str, times: int) -> Any:
        own_first = text.index("answer to") < text.index("ref ")
        if not own_first and text not in seen:
            seen.add(text)
            return 503
        return json.dumps({"better": "first" if own_first else "second"})

    roles.verdict = second_order_fails_once
    study = study_on(world, add_method(world, endpoint), max_prompts=2)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert [score.value for score in world.acquired()] == [1.0, 1.0]
    verdicts = [job for job in world.jobs(study) if job.kind == "judge"]
    assert [job.attempts for job in verdicts] == [2, 2]
    assert world.budget(study).spent == 2 * (ANSWER_COST + 2 * VERDICT_COST)
    answered = [text for text in roles.judged if text.index("answer to") < text.index("ref ")]
    assert [roles.judged[text] for text in answered] == [1, 1]
    world.check_money()


def test_an_endpoint_that_knows_no_schema_is_asked_without(
    ready: tuple[World, int], endpoint: Endpoint, roles: Roles
) -> None:
    world, method = ready
    usual = roles.__call__

    def no_schema(body: dict[str, Any]) -> dict[str, Any] | int:
        return 400 if "response_format" in body else usual(body)

    endpoint.responder = no_schema
    study = study_on(world, method, max_prompts=2)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == 2


def test_nothing_is_answered_that_could_not_be_judged_under_the_cap(ready: tuple[World, int]) -> None:
    """At the cap the study pauses with every answer judged, and goes on when the cap is raised."""
    world, method = ready
    whole = dearest_cell(world, method)
    study = study_on(world, method, caps={"usd": whole + 4 * (ANSWER_COST + VERDICT_COST)})
    world.settle()
    paused = world.study(study)
    assert paused.state == StudyState.PAUSED
    assert "budget exhausted" in paused.reason
    assert len(world.acquired()) == len(world.outputs()) == 5
    world.check_money()
    with world.database.begin() as session:
        ledger.set_cap(session, "study", study, "usd", 1_000_000)
        studies.move(session, study, StudyState.RUNNING)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert len(world.acquired()) == PROMPTS


def test_a_verdict_counts_for_its_judges_endpoint_alone() -> None:
    purchase = Purchase("inference", Charge(usd=10, endpoint="a"), Charge(usd=500, endpoint="b"))
    found = [
        purchase.in_budget(Budget(scope=scope, endpoint=name, unit="usd"))
        for scope, name in (("endpoint", "a"), ("endpoint", "b"), ("study", ""))
    ]
    assert found == [10, 500, 510]


def test_a_judge_that_is_away_pauses_the_study_and_answers_are_kept(
    ready: tuple[World, int], roles: Roles
) -> None:
    world, method = ready
    usual, roles.verdict = roles.verdict, lambda text, times: 404
    study = study_on(world, method)
    world.settle()
    assert world.study(study).state == StudyState.PAUSED
    assert "status 404" in world.study(study).reason
    roles.verdict = usual
    with world.database.begin() as session:
        jobs.free_unpaid(session, study)
        studies.move(session, study, StudyState.RUNNING)
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert set(roles.answered.values()) == {1}
    assert len(world.acquired()) == PROMPTS
    world.check_money()


def test_two_studies_share_answers_and_verdicts(ready: tuple[World, int], roles: Roles) -> None:
    world, method = ready
    both = [study_on(world, method, seed=seed) for seed in (1, 2)]
    world.settle()
    assert {world.study(study).state for study in both} == {StudyState.DONE}
    assert set(roles.answered.values()) == set(roles.judged.values()) == {1}
    assert len(world.acquired()) == PROMPTS


# --- pairs -------------------------------------------------------------------------------------------------


def test_a_job_of_two_methods_becomes_a_preference(
    ready: tuple[World, int], endpoint: Endpoint, roles: Roles
) -> None:
    world, first = ready
    second = add_method(world, endpoint, "n")
    for method in (first, second):
        study_on(world, method, batch_size=PROMPTS)
    world.settle()
    roles.verdict = lambda text, times: json.dumps(
        {"better": "first" if "by n" in text.split("<second>")[-2] else "second", "reason": "n it is"}
    )
    a, b = ordered_pair(second, first)
    with world.database.begin() as session:
        params = {"judge": "judge-a"}
        scorer = catalog.scorer_of(session, "judge-pairwise", params)
        prompt = world.outputs()[0].prompt_id
        new = NewJob(a, prompt, scorer.id or 0, 10_000, kind="judge", other_method_id=b)
        ids = jobs.add(session, 1, 9, [new])
        ledger.reserve(
            session, ledger.budgets_of(session, [("study", 1)]), dict.fromkeys(ids, Charge(usd=10_000))
        )
    world.send_jobs(ids, "judge")
    world.work()
    assert [(job.state, job.reason) for job in world.jobs()][-1] == ("done", "")
    (found,) = world.rows(Preference)
    assert (found.method_a_id, found.method_b_id, found.value) == (a, b, 0.0)
    assert (found.details["flipped"], found.details["votes"]) == (False, [0.0, 0.0])
    with world.database.read() as session:
        assert known_preferences(session, [scorer.id or 0], [first, second]) == [found]
        assert jobs.open_cells(session, [a, b]) == set()
    assert world.rows(Job)[-1].details["verdict"]["usage"]["calls"] == 2
    world.check_money()


# --- naming a judge ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"judge": None}, "names no judge"),
        ({"judge": "nobody"}, "unknown model 'nobody'"),
        ({"rubik": 1}, "rubik"),
        ({"low": 9, "high": 1}, "no grades"),
        ({"template": "score-v77"}, "neither a known name"),
    ],
)
def test_what_cannot_work_is_refused_when_the_benchmark_is_made(
    world: World, endpoint: Endpoint, params: dict[str, Any], message: str
) -> None:
    add_judge(world, endpoint)
    with pytest.raises(AssayError, match=message):
        add_benchmark(world, **params)


def test_a_judge_without_a_price_is_refused(world: World, endpoint: Endpoint) -> None:
    with world.database.begin() as session:
        spec = ModelSpec(name="judge-x", base_url=endpoint.url, model="my-own", benchmarks=[])
        catalog.add_model(session, spec, announce=False)
    with pytest.raises(AssayError, match="price"):
        add_benchmark(world, judge="judge-x")
