"""Studies of the objective "compare": answers first, then verdicts in both orders, reused by later
studies."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select
from typer.testing import CliRunner

from agent import steering
from agent.cli import app
from agent.pairwise import comparison_facts, read_sheet, write_sheet
from agent.registration import add_prompts
from agent.steering import StudyOrder
from agent.views import study_page
from assay.errors import BadInputError, UsageError
from assay.specs import DatasetSpec, PromptSpec
from storage.tables import Preference, StudyState
from tests.workers.endpoint import Endpoint, completion, serving
from tests.world import BENCHMARK, World

PROMPTS = 12
PRICE = {"input_per_million": 1.0, "output_per_million": 2.0}


class Roles:
    """Models answer with their name; the judge likes models of a higher letter, except where told
    otherwise."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.verdict = self.better

    def __call__(self, body: dict[str, Any]) -> dict[str, Any] | int:
        text = body["messages"][-1]["content"]
        self.asked[body["model"]] += 1
        if not body["model"].startswith("judge"):
            return completion(f"answer of {body['model']} to {text}")
        found = self.verdict(text)
        return found if isinstance(found, int) else completion(found)

    @staticmethod
    def better(text: str) -> str:
        places = sorted(
            (text.index(f"answer of {m}"), m) for m in ("ma", "mb", "mc") if f"answer of {m}" in text
        )
        return json.dumps({"reason": "so", "better": "first" if places[0][1] > places[1][1] else "second"})


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
def world(tmp_path: Path, endpoint: Endpoint) -> Iterator[World]:
    opened = World.open(tmp_path, estimator="aggregate", batch_size=3, max_prompts=PROMPTS)
    for name in ("ma", "mb", "mc", "judge-a"):
        opened.add_model(name, base_url=endpoint.url, price=PRICE, max_tokens=20, benchmarks=[])
    prompts = [
        PromptSpec(
            id=f"p{i}", dataset="open", text=f"question {i}", target=f"answer of h{i % 6} to question {i}"
        )
        for i in range(PROMPTS)
    ]
    with opened.database.begin() as session:
        add_prompts(session, BENCHMARK, [DatasetSpec(name="open", scorer="exact-match")], prompts)
    yield opened
    opened.database.close()


def ordered(world: World, *names: str, **order: Any) -> int:
    given = {"objective": "compare", "judge": "judge-a", "max_usd": 1.0, **order}
    with world.database.begin() as session:
        (study,) = steering.order(session, world.settings, StudyOrder(BENCHMARK, names, **given))
    return study


def preferences(world: World) -> list[Preference]:
    with world.database.read() as session:
        return list(session.exec(select(Preference)).all())


def test_the_better_of_two_is_named_with_few_verdicts(world: World, roles: Roles) -> None:
    study = ordered(world, "ma", "mb", policy="diffuse")
    world.settle()
    done = world.study(study)
    assert done.state == StudyState.DONE, done.reason
    assert done.reason.startswith("mb is better")
    assert done.findings["winner"] == "mb"
    assert done.findings["wins"]["ma"] == 0
    assert 0 < done.findings["bought"] < PROMPTS
    assert roles.asked["ma"] == roles.asked["mb"] == PROMPTS  # the policy looks at all answers
    assert roles.asked["judge-a"] == 2 * done.findings["bought"]  # both orders
    world.check_money()
    words = dict(comparison_facts(done.findings))
    assert "mb is better" in words["result"]


def test_a_later_study_reuses_answers_and_verdicts(world: World, roles: Roles) -> None:
    ordered(world, "ma", "mb", policy="diffuse")
    world.settle()
    before = roles.asked.copy()
    again = ordered(world, "mb", "ma", policy="random", until_confidence=0.6)
    world.settle()
    assert world.study(again).state == StudyState.DONE
    assert roles.asked["ma"] == before["ma"]
    assert len(preferences(world)) == len(
        {(p.method_a_id, p.method_b_id, p.prompt_id) for p in preferences(world)}
    )
    assert world.study(again).findings["verdicts"] >= world.study(again).findings["bought"]


def test_random_asks_for_the_answers_that_it_needs(world: World, roles: Roles) -> None:
    study = ordered(world, "ma", "mb", policy="random")
    world.settle()
    assert world.study(study).state == StudyState.DONE
    assert roles.asked["ma"] == world.study(study).findings["verdicts"] < PROMPTS


def test_the_default_looks_at_all_answers_once_other_methods_have_answered(
    world: World, roles: Roles, endpoint: Endpoint
) -> None:
    study = ordered(world, "ma", "mb")
    world.settle()
    before = world.study(study)
    assert before.policy == "prediction-powered"
    assert before.state == StudyState.DONE, before.reason
    assert "valid under early stopping" in before.reason
    assert roles.asked["ma"] == before.findings["verdicts"]  # nobody to learn from: answers as needed
    for i in range(6):
        method = world.add_model(f"h{i}", base_url=endpoint.url, price=PRICE, max_tokens=20, benchmarks=[])
        world.add_study(method, estimator="aggregate", policy="uniform")
    world.settle()
    after = ordered(world, "ma", "mc")
    world.settle()
    done = world.study(after)
    assert done.state == StudyState.DONE, done.reason
    assert done.findings["winner"] == "mc"
    assert roles.asked["ma"] == roles.asked["mc"] == PROMPTS
    assert done.findings["distance_kind"] == "sampling"
    world.check_money()


def test_ties_flips_and_refusals_are_told_apart(world: World, roles: Roles) -> None:
    def verdict(text: str) -> str:
        if "question 1" in text:  # 1, 10, 11: always the first shown
            return json.dumps({"reason": "so", "better": "first"})
        if "question 2" in text:
            return "I would rather not say."
        if "question 3" in text:
            return json.dumps({"reason": "so", "better": "tie"})
        return Roles.better(text)

    roles.verdict = verdict  # type: ignore[method-assign]
    study = ordered(world, "ma", "mb", policy="random", until_confidence=0.99999)
    world.settle()
    done = world.study(study)
    assert done.state == StudyState.DONE, done.reason
    found = done.findings
    assert (found["flips"], found["ties"], found["refusals"]) == (3, 4, 1)
    assert found["verdicts"] == PROMPTS - 1
    assert "3 flipped with the order, 1 refused" in dict(comparison_facts(found))["verdicts"]


def test_a_tournament_names_the_best_and_ranks(world: World) -> None:
    study = ordered(world, "ma", "mb", "mc", max_prompts=36)
    world.settle()
    done = world.study(study)
    assert done.policy == "tournament"
    assert done.state == StudyState.DONE, done.reason
    assert done.findings["winner"] == "mc"
    assert [row["method"] for row in done.findings["ranking"]] == ["mc", "mb", "ma"]
    assert done.findings["bought"] < 36
    assert any(label.startswith("rank ") for label, _ in comparison_facts(done.findings))


def test_a_cap_pauses_and_a_higher_one_goes_on(world: World) -> None:
    study = ordered(world, "ma", "mb", policy="diffuse", max_usd=0.001)
    world.settle()
    assert world.study(study).state == StudyState.PAUSED
    assert "budget exhausted" in world.study(study).reason
    world.check_money()
    with world.database.begin() as session:
        steering.resume(session, study, usd_cap=1_000_000)
    world.settle()
    assert world.study(study).state == StudyState.DONE


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (("ma",), {}, "at least two methods"),
        (("ma", "mb"), {"judge": None}, "needs a judge"),
        (("ma", "mb"), {"judge": "judge-score:judge-a"}, "does not compare"),
        (("ma", "mb"), {"policy": "ucb-e"}, "unknown pair policy"),
        (("ma", "mb", "mc"), {"policy": "random"}, "compares two methods, not 3"),
    ],
)
def test_wrong_use_is_refused(
    world: World, names: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ordered(world, *names, **changes)


# --- people ------------------------------------------------------------------------------------------------


def filled(world: World, study: int, path: Path, verdict: Any) -> None:
    with world.database.read() as session:
        write_sheet(session, study, path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["verdict"] = verdict(row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def likes_mb(row: dict[str, str]) -> str:
    return "1" if "answer of mb" in row["answer_1"] else "2"


def test_people_judge_by_blinded_sheets(world: World, tmp_path: Path) -> None:
    study = ordered(world, "ma", "mb", judge="people", policy="random")
    world.settle()
    sheet, orders = tmp_path / "sheet.csv", set()
    for _ in range(10):
        if world.study(study).state == StudyState.DONE:
            break
        assert "waits for people" in world.study(study).reason
        filled(world, study, sheet, likes_mb)
        with sheet.open(newline="") as file:
            orders |= {"answer of mb" in row["answer_1"] for row in csv.DictReader(file)}
        with world.database.begin() as session:
            assert read_sheet(session, study, sheet)["stored"] > 0
        world.settle()
    assert world.study(study).findings["winner"] == "mb"
    assert orders == {True, False}


def test_a_wrong_line_is_named_and_nothing_is_stored(world: World, tmp_path: Path) -> None:
    study = ordered(world, "ma", "mb", judge="people", policy="random")
    world.settle()
    sheet = tmp_path / "sheet.csv"
    filled(world, study, sheet, lambda row: "both")
    with world.database.begin() as session, pytest.raises(BadInputError, match=r"line 2: verdict 'both'"):
        read_sheet(session, study, sheet)
    sheet.write_text('{"id": "nobody", "verdict": "1"}\n')
    lines = sheet.rename(tmp_path / "sheet.jsonl")
    with world.database.begin() as session, pytest.raises(BadInputError, match=r"line 1: id 'nobody'"):
        read_sheet(session, study, lines)
    assert preferences(world) == []


def test_skipped_rows_count_as_refused_and_sheets_come_as_json_lines(world: World, tmp_path: Path) -> None:
    study = ordered(world, "ma", "mb", judge="people", policy="random")
    world.settle()
    sheet = tmp_path / "sheet.jsonl"
    with world.database.read() as session:
        assert write_sheet(session, study, sheet) == 3
    rows = [json.loads(line) | {"verdict": "skip"} for line in sheet.read_text().splitlines()]
    rows[0]["verdict"] = ""
    sheet.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with world.database.begin() as session:
        assert read_sheet(session, study, sheet) == {"stored": 0, "skipped": 2, "empty": 1, "known": 0}
    world.settle()
    assert world.study(study).findings["refusals"] == 2
    with world.database.read() as session, pytest.raises(UsageError, match="not judged by people"):
        write_sheet(session, ordered(world, "ma", "mb"), sheet)


# --- what is shown -----------------------------------------------------------------------------------------


def test_terminal_page_and_api_show_the_same_findings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    study = ordered(world, "ma", "mb")
    world.settle()
    monkeypatch.setenv("ASSAY_DATA_DIR", str(world.settings.data_dir))
    shown = CliRunner().invoke(app, ["study", "show", str(study), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)["comparison"]
    assert found == world.study(study).findings
    assert {"ties", "flips", "refusals", "winner", "risk_kind"} <= set(found)
    words = CliRunner().invoke(app, ["study", "show", str(study)])
    assert "mb is better" in words.output
    with world.database.read() as session:
        assert study_page(session, study).comparison == found


def test_sheets_by_command(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    study = ordered(world, "ma", "mb", judge="people", policy="random")
    world.settle()
    monkeypatch.setenv("ASSAY_DATA_DIR", str(world.settings.data_dir))
    sheet = tmp_path / "s.csv"
    done = CliRunner().invoke(app, ["study", "sheet", str(study), "--out", str(sheet)])
    assert done.exit_code == 0, done.output
    filled(world, study, sheet, likes_mb)
    taken = CliRunner().invoke(app, ["study", "verdicts", str(study), str(sheet), "--json"])
    assert json.loads(taken.stdout)["stored"] == 3
