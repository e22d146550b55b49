"""Every command: valid use as table and JSON; invalid use as one line, an exit code and nothing stored."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent import opening
from agent.commands import _shared, doctor
from agent.reference import PATH, commands, reference
from assay.settings import Settings
from storage.database import Database
from tests.workers.endpoint import serving
from tests.world import World, write_matrix

MODEL = ["model", "add", "m17", "--backend", "replay"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with nothing configured but the data folder."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"ASSAY_{name.upper()}", raising=False)
    monkeypatch.setenv("ASSAY_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_shared.console, "_width", 200)
    return tmp_path


@pytest.fixture
def filled(home: Path) -> Iterator[World]:
    """The same with benchmark "trivia" and its history."""
    world = World.open(home).with_history()
    yield world
    world.database.close()


def run(*arguments: object) -> Result:
    from agent.cli import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def ok(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert result.stderr == ""
    return result.stdout


def ok_json(*arguments: object) -> Any:
    return json.loads(ok(*arguments, "--json"))


def refused(*arguments: object, code: int, says: str) -> str:
    """The command fails as it should: exit code, a line that says what, perhaps one with what to do."""
    result = run(*arguments)
    assert result.exit_code == code, result.output + repr(result.exception)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    if result.stderr.startswith("error: "):
        assert len(result.stderr.splitlines()) <= 2
    else:
        assert code == 2  # typer's own words about wrong use
        assert "Usage: " in result.stderr
    text = " ".join(result.stderr.replace("│", " ").split())
    assert says in text
    return text


def counts(folder: Path) -> dict[str, int]:
    """Rows of every table, to see that nothing was half-written."""
    with sqlite3.connect(folder / "data" / "assay.db") as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
    database.close()
    return found


# --- help and reference ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_has_help_with_an_example(home: Path, name: str) -> None:
    words = name.split()[1:]
    text = ok(*words, "--help")
    assert "Usage:" in text
    assert f"Example: {'' if words[0] in ('agent', 'db') else 'assay ' + ' '.join(words)}" in " ".join(
        text.split()
    )


def test_help_and_version_without_a_command(home: Path) -> None:
    assert "leaderboard" in ok("--help")
    assert ok("--version").startswith("assay ")
    assert run().exit_code == 2


def test_the_reference_page_is_what_the_code_says() -> None:
    assert PATH.read_text(encoding="utf-8") == reference(), "write it anew: python -m agent.reference"
    for name in Settings.model_fields:
        assert f"`ASSAY_{name.upper()}`" in reference()
    for name, _ in commands():
        assert f"### `{name}" in reference()


# --- valid use ---------------------------------------------------------------------------------------------


def test_benchmarks_are_created_imported_listed_and_shown(home: Path) -> None:
    assert "no benchmarks yet: assay benchmark create" in ok("benchmark", "list")
    (home / "qa.jsonl").write_text('{"id": "a", "text": "1 + 1?", "target": "2"}\n', encoding="utf-8")
    assert ok("benchmark", "create", "qa", "--file", "qa.jsonl") == "benchmark qa created, 1 prompts added\n"
    assert ok_json("benchmark", "create", "qa") == {"name": "qa", "new": False, "prompts_added": 0}
    assert "0 prompts added to qa, 1 were known" in ok("benchmark", "add-prompts", "qa", "qa.jsonl")
    assert ok_json("benchmark", "add-prompts", "qa", "qa.jsonl")["known"] == 1
    write_matrix(home / "trivia")
    assert "576 scores imported (0 were known), 16 models" in ok(
        "benchmark", "import", "trivia", "--rows", "train"
    )
    assert ok_json("benchmark", "import", "trivia", "--rows", "train")["scores_known"] == 576
    (home / "table.csv").write_text("model,dataset,prompt_id,score\nx,d,1,0.5\n", encoding="utf-8")
    assert ok_json("benchmark", "import", "table.csv", "--benchmark", "t")["scores_new"] == 1
    assert [b["name"] for b in ok_json("benchmark", "list")] == ["qa", "t", "trivia"]
    assert "trivia" in ok("benchmark", "list")
    assert "hard" in ok("benchmark", "show", "trivia")
    assert [d["prompts"] for d in ok_json("benchmark", "show", "trivia")["datasets"]] == [12, 24]


def test_models_are_added_listed_shown_and_retired(filled: World) -> None:
    assert "no models yet" in ok("model", "list")
    assert ok(*MODEL, "--matrix", filled.matrix) == "registered m17\n"
    assert "nothing changed" in ok(*MODEL, "--matrix", filled.matrix)
    (filled.folder / "m18.toml").write_text('name = "m18"\nbase_url = "http://h/v1"\nprice = {free = true}\n')
    assert ok_json("model", "add", "--file", "m18.toml")["new"]
    assert ok_json("model", "add", "m19", "--base-url", "http://h/v1", "--free")["name"] == "m19"
    assert [m["name"] for m in ok_json("model", "list")] == ["m17", "m18", "m19"]
    assert len(ok_json("model", "list", "--all")) == 19
    assert "replay" in ok("model", "list")
    assert "http://h/v1" in ok("model", "show", "m18")
    assert ok_json("model", "show", "m18")["spec"]["base_url"] == "http://h/v1"
    assert ok("model", "retire", "m18") == "m18 is retired\n"
    assert ok_json("model", "show", "m18")["state"] == "retired"


def test_a_study_from_creation_to_the_leaderboard(filled: World) -> None:
    ok(*MODEL, "--matrix", filled.matrix)
    with filled.database.begin() as session:  # the agent's own study is another test's business
        session.connection().exec_driver_sql("UPDATE event SET handled_at = created_at")
    made = ok_json(
        "study", "create", "--benchmark", "trivia", "--model", "m17", "--max-prompts", 12, "--seed", 1
    )
    assert (made["state"], made["max_prompts"], made["cap"]) == ("waiting", 12, 1_000_000)
    assert "the agent takes it from here" in ok("study", "create", "--benchmark", "trivia", "--model", "m17")
    assert ok("study", "cancel", 2) == "study 2 is cancelled\n"
    assert ok("study", "pause", 1) == "study 1 is paused\n"
    assert ok("study", "resume", 1, "--max-usd", 2, "--max-prompts", 10) == "study 1 goes on\n"
    filled.settle()
    assert "bought 10 of at most 10 prompts" in ok("study", "show", 1)
    shown = ok_json("study", "show", 1)
    assert (shown["state"], shown["done"], shown["cap"]) == ("done", 10, 2_000_000)
    assert [s["id"] for s in ok_json("study", "list")] == [2, 1]
    assert "cancelled" in ok("study", "list")
    assert ok_json("study", "wait", 1)["state"] == "done"
    assert "10 of 36 prompts known" in ok("study", "wait", 1, 2)
    assert "m17" in ok("leaderboard", "trivia")
    for form, start in (("csv", "rank,"), ("md", "## trivia"), ("json", "{")):
        assert ok("leaderboard", "trivia", "--format", form).startswith(start)
    assert "m17" in json.dumps(ok_json("leaderboard", "trivia"))


def test_waiting_follows_a_study_to_its_end(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.add_model("m17")
    monkeypatch.setattr("agent.commands.study.time.sleep", lambda _: filled.settle())
    arguments = ("study", "create", "--benchmark", "trivia", "--model", "m17", "--max-prompts", 5, "--wait")
    assert ok_json(*arguments)["state"] == "done"


def test_db_upgrade_makes_the_tables_and_may_be_repeated(home: Path) -> None:
    for _ in range(2):
        assert "is up to date" in ok("db", "upgrade")
    assert counts(home)["study"] == 0


def test_doctor_says_what_is_there(home: Path) -> None:
    with serving() as endpoint:
        ok("model", "add", "m", "--base-url", endpoint.url, "--free")
        checks = ok_json("doctor")
        assert [c["check"] for c in checks] == ["database", "broker", "web page", "model m"]
        assert all(c["ok"] for c in checks)
        assert f"{endpoint.url} answers" in ok("doctor")


def test_plan_retrain_and_versions(filled: World) -> None:
    filled.add_model("m17")
    plan = ok_json("plan", "--benchmark", "trivia", "--model", "m17", "--budgets", "5,10")
    assert [step["prompts"] for step in plan["m17"]] == [5, 10, 36]
    assert "at most" in ok("plan", "--benchmark", "trivia", "--model", "m17")
    assert ok_json("retrain", "trivia", "--estimator", "aggregate")["state"] == "wanted"
    assert "version 1 of aggregate on trivia: wanted" in ok("retrain", "trivia", "--estimator", "aggregate")
    assert [version["state"] for version in ok_json("estimators", "list")] == ["wanted"]
    assert filled.jobs() == []


def test_backtest(home: Path) -> None:
    write_matrix(home / "m")
    arguments = "backtest --matrix m --estimator aggregate --budgets 5 --seeds 1 --jobs 1"
    assert "| uniform | aggregate | 5 |" in ok(*arguments.split())
    assert ok_json(*arguments.split())["results"][0]["budget"] == 5


def test_serve_and_up_start_what_they_say(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr("agent.web.serve", lambda settings, host, port: called.append((host, port)))
    assert "http://127.0.0.1:8080/" in ok("serve", "--port", 8080)
    monkeypatch.setattr("agent.supervisor.Supervisor.run", lambda self, stop: called.append(self))
    monkeypatch.setattr("agent.commands.run._stop_on_signal", lambda: None)
    assert "logs in" in ok("up", "--workers", 2, "--watch-models", "models")
    (address, supervisor) = called
    assert address == ("127.0.0.1", 8080)
    assert [c.name for c in supervisor.children] == [
        "broker",
        "agent",
        "worker-1",
        "worker-2",
        "trainer",
        "web",
    ]
    assert supervisor.environment["ASSAY_WATCH_MODELS"] == str(home / "models")


# --- bad input ---------------------------------------------------------------------------------------------

BAD_FILES = [
    ("model add --file bad.toml", 'name = "x"\nbase_ulr = "h"', 1,
     "unknown key 'base_ulr', did you mean 'base_url'?"),
    ("model add --file bad.toml", "name = ", 1, "bad.toml cannot be read"),
    ("model add --file absent.toml", "", 1, "absent.toml cannot be read"),
    ("model add --file bad.toml", 'name = "x"\nbase_url = "h"', 1, "the price of model 'x' is not known"),
    ("model add --file bad.toml", 'name = "x"\nbackend = "repaly"', 2, "did you mean 'replay'?"),
    ("benchmark add-prompts trivia bad.jsonl", '{"id": "p0", "dataset": "easy", "text": "other"}', 1,
     "prompt id 'p0' of dataset 'easy' stands for two different texts"),
    ("benchmark add-prompts trivia bad.jsonl", '{"text": "new"}\n{"id": "x"}', 1, "bad.jsonl, line 2: text"),
    ("benchmark add-prompts trivia bad.csv", "a,b", 2, "known endings: .jsonl"),
    ("benchmark create new --file bad.jsonl", '{"text": "new"}\n{', 1, "bad.jsonl, line 2: not JSON"),
    ("benchmark create new --file bad.toml", '[[datasets]]\nname = "d"\nscorer = "exact"', 2,
     "unknown scorer 'exact'"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score\nx,d,1,0.5\nx,d,2,1.5\n", 1,
     "bad.csv, line 3, column 'score': 1.5 is outside [0, 1]"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score\nx,d,1,-0.1\n", 1, "outside [0, 1]"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score\nx,d,1,NaN\n", 1, "line 2, column 'score'"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score\nx,d,1,\n", 1, "line 2, column 'score'"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score\nx,d,1,good\n", 1, "'good' is not a number"),
    ("benchmark import bad.csv", "model,dataset,score\nx,d,1\n", 1, "column 'prompt_id' is missing"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score,prompt\nx,d,1,0.5,one\ny,d,1,0.5,two\n", 1,
     "has another text than in an earlier row"),
    ("benchmark import bad.csv", "model,dataset,prompt_id,score\nx,d,1,0.5\nx,d,1,0.6\n", 1,
     "keep one of the rows"),
    ("benchmark import bad.csv --benchmark trivia",
     "model,dataset,prompt_id,score,prompt\nx,easy,p0,1,other\n", 1, "stands for two different texts"),
    ("benchmark import bad.csv", "", 1, "bad.csv"),
    ("benchmark import absent.csv", "", 1, "no file at absent.csv"),
    ("benchmark import absent", "", 1, "no folder at absent"),
    ("benchmark import bad.csv --rows train", "model,dataset,prompt_id,score\n", 2, "--rows chooses rows"),
    ("benchmark import matrix --rows tests", "", 1, "tests"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "content", "code", "says"), BAD_FILES)
def test_bad_files_store_nothing(filled: World, command: str, content: str, code: int, says: str) -> None:
    for word in command.split():
        if word.startswith("bad."):
            (filled.folder / word).write_text(content, encoding="utf-8")
    before = counts(filled.folder)
    refused(*command.split(), code=code, says=says)
    assert counts(filled.folder) == before


WRONG_USE = [
    ("benchmark show triva", 2, "unknown benchmark 'triva' known: trivia"),
    ("benchmark add-prompts triva x.jsonl", 2, "unknown benchmark 'triva'"),
    ("benchmark import matrix --weighting model", 2, "unknown weighting 'model'"),
    ("leaderboard triva", 2, "unknown benchmark 'triva'"),
    ("leaderboard trivia --format xml", 2, "'xml' is not one of"),
    ("model show nobody", 2, "unknown model 'nobody'"),
    ("model retire nobody", 2, "unknown model 'nobody'"),
    ("model add", 2, "no model named"),
    ("model add x --backend opnai --free", 2, "did you mean 'openai'?"),
    ("model add x --base-url http://h/v1", 1, "set price ="),
    ("study create --benchmark triva --model m0", 2, "unknown benchmark 'triva'"),
    ("study create --benchmark trivia --model nobody", 2, "unknown method 'nobody'"),
    ("study create --benchmark trivia --model m0 --policy unifrom", 2, "did you mean 'uniform'?"),
    ("study create --benchmark trivia --model m0 --estimator aggregat", 2, "did you mean 'aggregate'?"),
    ("study create --benchmark trivia --model m0 --objective estimat", 2, "unknown objective 'estimat'"),
    ("study create --benchmark trivia", 2, "--model"),
    ("study create --benchmark trivia --model m0 --max-usd -1", 2, "--max-usd"),
    ("study create --benchmark trivia --model m0 --max-usd nan", 2, "--max-usd"),
    ("study create --benchmark trivia --model m0 --max-usd inf", 2, "--max-usd"),
    ("study create --benchmark trivia --model m0 --max-usd 1e300", 2, "--max-usd"),
    ("study create --benchmark trivia --model m0 --max-prompts 0", 2, "--max-prompts"),
    ("study create --benchmark trivia --model m0 --until-width nan", 2, "--until-width"),
    ("study create --benchmark trivia --model m0 --seed -1", 2, "--seed"),
    ("study create --benchmark trivia --model m0 --batch 0", 2, "--batch"),
    ("study show 99", 2, "there is no study 99"),
    ("study show one", 2, "unable to parse string as an integer"),
    ("study wait 99", 2, "there is no study 99"),
    ("study pause 99", 2, "there is no study 99"),
    ("study resume 99", 2, "there is no study 99"),
    ("study cancel 99", 2, "there is no study 99"),
    ("plan --benchmark triva --model m0", 2, "unknown benchmark 'triva'"),
    ("plan --benchmark trivia --model nobody", 2, "unknown method 'nobody'"),
    ("plan --benchmark trivia --model m0 --budgets many", 2, "whole numbers separated by commas"),
    ("plan --benchmark trivia --model m0 --budgets 0", 2, "budgets start at 1 prompt"),
    ("plan --benchmark trivia --model m0 --objective worst", 2, "unknown objective 'worst'"),
    ("retrain triva", 2, "unknown benchmark 'triva'"),
    ("retrain trivia --estimator aggregat", 2, "did you mean 'aggregate'?"),
    ("retrain trivia --policy uniform", 2, "policy 'uniform' is not learned"),
    ("retrain trivia --policy ppo --estimator ridge", 2, "assay retrain trivia --estimator ridge --wait"),
    ("studdy list", 2, "No such command 'studdy'"),
    ("backtest --matrix absent", 2, "no matrix folder at absent"),
    ("backtest --matrix matrix --policy unifrom", 2, "did you mean 'uniform'?"),
    ("backtest --matrix matrix --budgets many", 2, "is no list of numbers"),
    ("worker --threads 0", 2, "--threads"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "code", "says"), WRONG_USE)
def test_wrong_use_says_what_to_write(filled: World, command: str, code: int, says: str) -> None:
    before = counts(filled.folder)
    refused(*command.split(), code=code, says=says)
    assert counts(filled.folder) == before


def test_a_study_that_is_over_cannot_go_on(filled: World) -> None:
    study = filled.add_study(filled.add_model("m17"))
    ok("study", "cancel", study)
    refused("study", "resume", study, code=2, says=f"study {study} is cancelled and cannot become running")


def test_a_failed_study_ends_the_command_with_its_reason(filled: World) -> None:
    from storage import studies
    from storage.tables import StudyState

    study = filled.add_study(filled.add_model("m17"))
    with filled.database.begin() as session:
        studies.move(session, study, StudyState.FAILED, "too few rows")
    result = run("study", "wait", study)
    assert result.exit_code == 1
    assert "error: study 1 failed: too few rows" in result.stderr


# --- configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("policy = ", "assay.toml cannot be read"),
        ('polcy = "uniform"', "unknown setting 'polcy' in assay.toml, did you mean 'policy'?"),
        ("batch_size = 0", "setting 'batch_size'"),
        ("max_usd = inf", "setting 'max_usd'"),
        ("seed = -1", "setting 'seed'"),
        ('lease_s = "long"', "setting 'lease_s'"),
    ],
)
def test_a_bad_configuration_is_named(home: Path, content: str, says: str) -> None:
    (home / "assay.toml").write_text(content, encoding="utf-8")
    refused("study", "list", code=2, says=says)
    assert not (home / "data").exists()


def test_a_bad_environment_variable_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_MAX_PROMPTS", "many")
    refused("study", "list", code=2, says="ASSAY_MAX_PROMPTS")


def test_assay_toml_is_used_and_the_environment_wins(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (filled.folder / "assay.toml").write_text("max_prompts = 7\nseed = 5\n", encoding="utf-8")
    monkeypatch.setenv("ASSAY_SEED", "6")
    filled.add_model("m17")
    made = ok_json("study", "create", "--benchmark", "trivia", "--model", "m17")
    assert (made["max_prompts"], made["seed"]) == (7, 6)


# --- database, broker, endpoints ---------------------------------------------------------------------------

WRITES: list[tuple[str, ...]] = [
    ("benchmark", "create", "new"),
    ("model", "retire", "m0"),
    ("benchmark", "import", "matrix", "--benchmark", "again"),
    ("study", "create", "--benchmark", "trivia", "--model", "m0"),
]


@pytest.mark.parametrize("command", WRITES)
def test_a_locked_database(filled: World, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(opening, "Database", partial(Database, busy_timeout_s=0.05))
    before = counts(filled.folder)
    with filled.locked():
        refused(*command, code=1, says="is locked by another program close it and try again")
        assert "scores" in ok("benchmark", "list")  # reading goes on
    assert counts(filled.folder) == before


@pytest.mark.parametrize("command", WRITES)
def test_a_read_only_database(
    filled: World, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    path = filled.folder / "data" / "assay.db"
    monkeypatch.setenv("ASSAY_DATABASE_URL", f"sqlite:///file:{path}?mode=ro&uri=true")
    before = counts(filled.folder)
    refused(*command, code=1, says="is read-only give this user the right to write")
    assert counts(filled.folder) == before


def _newer(database: sqlite3.Connection) -> None:
    database.execute("UPDATE alembic_version SET version_num = '9999'")


def _someone_elses(database: sqlite3.Connection) -> None:
    database.execute("DROP TABLE alembic_version")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_newer, "which is newer than this program's"),
        (_someone_elses, "run: assay db upgrade"),
    ],
)
def test_a_database_of_another_version(
    filled: World, change: Callable[[sqlite3.Connection], None], says: str
) -> None:
    with sqlite3.connect(filled.folder / "data" / "assay.db") as database:
        change(database)
    database.close()
    for command in (("benchmark", "list"), ("agent",), ("worker",), ("model", "retire", "m0")):
        refused(*command, code=1, says=says)
    result = run("doctor")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "the database URL cannot be read"),
        ("mysql://h/d", "database kind 'mysql' is not supported"),
        ("sqlite:////proc/none/assay.db", "check that its folder exists and is writable"),
        ("postgresql://u:geheim@127.0.0.1:1/d", "start PostgreSQL, or correct ASSAY_DATABASE_URL"),
    ],
)
def test_a_database_that_is_not_there(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str, says: str
) -> None:
    monkeypatch.setenv("ASSAY_DATABASE_URL", url)
    assert "geheim" not in refused("study", "list", code=1, says=says)


def test_a_file_that_is_no_database(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "assay.db").write_text("hello, I am a letter, not a database" * 50)
    refused("study", "list", code=1, says="is no SQLite database")


@pytest.mark.parametrize("command", ["worker", "agent"])
def test_an_absent_broker(home: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("ASSAY_BROKER_URL", "redis://:geheim@127.0.0.1:1/0")
    says = refused(command, code=1, says="the broker at 127.0.0.1:1/0 does not answer")
    assert "geheim" not in says
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert [check["ok"] for check in json.loads(result.stdout)] == [True, False, True]


def refusing_url(probe: socket.socket) -> str:
    probe.bind(("127.0.0.1", 0))  # bound but not listening: whoever connects is refused
    return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


def test_an_endpoint_that_refuses_connections(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.execution.FIRST_RETRY_S", 0.001)
    with socket.socket() as probe:
        ok("model", "add", "m", "--base-url", refusing_url(probe), "--free")
        result = run("doctor")
        assert result.exit_code == 1
        assert "does not answer (ConnectError)" in result.stdout
        filled.settings.max_prompts = 5
        filled.settle()
    shown = ok_json("study", "show", 1)
    assert (shown["parked"], shown["spent"]) == (5, 0)
    assert filled.acquired() == []
    assert {job.reason for job in filled.jobs()} == {"the endpoint cannot be reached: ConnectionRefusedError"}
    assert {job.attempts for job in filled.jobs()} == {filled.settings.max_attempts}


def test_doctor_notices_a_missing_and_a_wrong_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as endpoint:
        ok("model", "add", "m", "--base-url", endpoint.url, "--free", "--api-key-env", "TEST_KEY")
        assert "environment variable TEST_KEY is not set" in run("doctor").stdout
        monkeypatch.setenv("TEST_KEY", "wrong")
        found = run("doctor")
        assert "refuses the key (status 401)" in found.stdout
        assert "wrong" not in found.stdout
        assert found.exit_code == 1


# --- what nobody thought of --------------------------------------------------------------------------------


def test_an_unexpected_error_is_one_line_too_and_a_traceback_on_request(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(doctor, "_checks", fail)
    refused("doctor", code=1, says="unexpected ZeroDivisionError: oops see where with: assay --debug")
    assert isinstance(run("--debug", "doctor").exception, ZeroDivisionError)


def test_debug_shows_where_an_error_comes_from_in_groups_too(filled: World) -> None:
    assert type(run("--debug", "study", "show", 99).exception).__name__ == "NotFoundError"


def test_templates_are_added_varied_listed_and_rendered(filled: World, tmp_path: Path) -> None:
    added = ok_json(
        "template", "add", "short", "--text", "Question: {text}\\nAnswer:", "--benchmark", "trivia"
    )
    assert added[0]["fields"] == ["text"]
    assert "were there already" in ok("template", "add", "short", "--text", "Question: {text}\\nAnswer:")
    file = tmp_path / "more.jsonl"
    file.write_text('{"name": "polite", "text": "Please: {{ text }}", "engine": "jinja"}\n')
    assert "added 1" in ok("template", "import", file)
    variants = ok_json("template", "generate", "short", "--count", "6")
    assert [variant["distance"] for variant in variants] == [1] * 5
    listed = ok_json("template", "list")
    assert {"short", "polite", "short-005"} <= {template["name"] for template in listed}
    assert ok("template", "render", "polite", "--benchmark", "trivia").startswith("Please: What is")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["add", "t"], 2, "give the template's text once"),
        (["add", "t", "--text", "no field"], 1, "names no field"),
        (["add", "t", "--text", "{text} {hint}", "--benchmark", "trivia"], 1, "names the field 'hint'"),
        (["add", "plain", "--text", "{text}?"], 1, "there already with another text"),
        (["render", "none", "--benchmark", "trivia"], 2, "unknown template 'none'"),
        (["generate", "plain"], 1, "no labelled part"),
        (["import", "absent.jsonl"], 1, "cannot be read"),
    ],
)
def test_templates_that_cannot_work_leave_nothing(
    filled: World, arguments: list[str], code: int, message: str
) -> None:
    before = ok_json("template", "list")
    result = run("template", *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert ok_json("template", "list") == before
