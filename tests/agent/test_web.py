import csv
import io
import json
import re
import socket
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from agent.boards import Shared
from agent.web import create_app, serve
from agent.web._charts import axis_of, curve_of
from assay.errors import UsageError
from assay.settings import Settings
from storage import events
from storage.tables import Output, WatchedItem
from tests.agent.boards import Board, fill, open_database, random_board

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
PAGES = (
    "/",
    "/benchmarks",
    "/benchmarks/trivia",
    "/studies",
    "/studies/1",
    "/studies/2",
    "/studies/3",
    "/events",
    "/models",
    "/models/dune-34b",
    "/models/amber-70b",
    "/models/fjord-1b",
    "/compare?benchmark=trivia&m=dune-34b&m=amber-70b",
    "/prompts?benchmark=trivia",
    "/prompts/1",
    "/spend",
    "/errors",
)
SCRIPT = '<script src="/static/live.js" defer></script>'


@pytest.fixture
def client(tmp_path: Path):
    with TestClient(create_app(Settings(data_dir=tmp_path)), raise_server_exceptions=False) as client:
        yield client
        client.app.state.database.close()


@pytest.fixture
def database(tmp_path: Path):
    database = open_database(tmp_path)
    yield database
    database.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A filled database that the tests only read."""
    folder = tmp_path_factory.mktemp("filled")
    database = open_database(folder)
    with database.begin() as session:
        fill(session)
    database.close()
    with TestClient(create_app(Settings(data_dir=folder)), raise_server_exceptions=False) as client:
        yield client
        client.app.state.database.close()


class TestPages:
    @pytest.mark.parametrize("path", PAGES)
    def test_answer_as_html(self, filled: TestClient, path: str) -> None:
        answer = filled.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.text.count("<h1") == 1
        assert 'lang="en"' in answer.text

    @pytest.mark.parametrize("path", PAGES[1:])
    def test_answer_as_json_by_suffix_and_by_query(self, filled: TestClient, path: str) -> None:
        address, _, query = path.partition("?")
        by_suffix = filled.get(f"{address}.json?{query}")
        by_query = filled.get(f"{address}?{query}&format=json")
        assert by_suffix.status_code == by_query.status_code == 200
        assert by_suffix.json().keys() == by_query.json().keys()

    @pytest.mark.parametrize("path", PAGES)
    def test_have_neither_inline_script_nor_inline_style(self, filled: TestClient, path: str) -> None:
        text = filled.get(path).text.replace(SCRIPT, "")
        assert "<script" not in text
        assert not re.search(r"\s(style|on\w+)\s*=", text)

    def test_front_page_names_the_leader(self, filled: TestClient) -> None:
        (line,) = filled.get("/benchmarks.json").json()["benchmarks"]
        assert (line["leader"], line["models"], line["open_studies"]) == ("amber-70b", 5, 2)
        assert not line["leader_sure"]
        assert "not yet sure" in filled.get("/").text

    def test_leaderboard_shows_what_json_says(self, filled: TestClient) -> None:
        text = filled.get("/benchmarks/trivia").text
        rows = filled.get("/benchmarks/trivia.json").json()["rows"]
        places = [text.index(f">{row['method']}</a></th>") for row in rows]
        assert places == sorted(places)
        assert all(f"{row['score']:.3f}" in text for row in rows)
        assert 'href="/studies/2"' in text
        assert "Not shown: 1 retired" in text

    def test_study_shows_state_spend_interval_and_decisions(self, filled: TestClient) -> None:
        page = filled.get("/studies/1.json").json()
        assert page["study"]["state"] == "done"
        assert page["study"]["budgets"] == [{"unit": "usd", "cap": 1_000_000, "spent": 4200, "reserved": 0}]
        assert [step["acquired"] for step in page["steps"]["dune-34b"]] == [4, 8, 12]
        assert [decision["state"] for decision in page["decisions"]] == ["parked", "done", "done", "done"]
        assert page["decisions"][1]["score"] == 1.0
        text = filled.get("/studies/1").text
        for part in (
            "bought 20 prompts",
            "$0.0042",
            "endpoint refused the connection",
            "set-0/p0",
            "<polyline",
        ):
            assert part in text

    def test_unfinished_study_can_reload_itself(self, filled: TestClient) -> None:
        assert "http-equiv" not in filled.get("/studies/2").text
        assert '<meta http-equiv="refresh" content="5">' in filled.get("/studies/2?refresh=5").text

    def test_events_show_their_error(self, filled: TestClient) -> None:
        assert "no price is known for model fjord-1b" in filled.get("/events").text
        assert filled.get("/events.json").json()["events"][0]["error"].startswith("no price")

    def test_watcher_whose_source_is_down_says_so(self, client: TestClient, database) -> None:
        with database.begin() as session:
            session.add(WatchedItem(watcher="hub", key=":source", error="hub.example does not answer"))
            session.add(WatchedItem(watcher="hub", key=":etag", fingerprint="x"))
            session.add(WatchedItem(watcher="hub", key="model-1"))
        (line,) = client.get("/events.json").json()["watchers"]
        assert (line["seen"], line["failed"], line["down"]) == (1, 0, "hub.example does not answer")
        assert "hub.example does not answer" in client.get("/events").text

    def test_studies_filter_by_state(self, filled: TestClient) -> None:
        found = filled.get("/studies.json", params={"state": "running"}).json()["studies"]
        assert [study["id"] for study in found] == [2]
        assert "No study is failed" in filled.get("/studies?state=failed").text

    def test_changes_show_at_once(self, client: TestClient, database) -> None:
        with database.begin() as session:
            fill(session)
        assert len(client.get("/benchmarks/trivia.json").json()["rows"]) == 5
        with database.begin() as session:
            Board.create(session).retire("amber-70b")
        assert len(client.get("/benchmarks/trivia.json").json()["rows"]) == 4

    def test_health(self, filled: TestClient) -> None:
        assert filled.get("/healthz").json() == {"status": "ok"}
        assert filled.get("/readyz").json() == {"status": "ready", "database": "ok"}


class TestLeaderboardView:
    @pytest.mark.parametrize("sort", ["rank", "name", "score", "width", "next", "acquired", "cost", "age"])
    def test_sorts(self, filled: TestClient, sort: str) -> None:
        one, other = (
            [
                row["method"]
                for row in filled.get(f"/benchmarks/trivia.json?sort={sort}&dir={way}").json()["rows"]
            ]
            for way in ("asc", "desc")
        )
        assert sorted(one) == sorted(other)
        assert one != other
        assert 'aria-sort="descending"' in filled.get(f"/benchmarks/trivia?sort={sort}&dir=desc").text

    def test_filters_by_text_and_keeps_ranks(self, filled: TestClient) -> None:
        rows = filled.get("/benchmarks/trivia.json", params={"q": "DUNE"}).json()["rows"]
        assert [(row["method"], row["rank"]) for row in rows] == [("dune-34b", 2)]
        assert "No model" in filled.get("/benchmarks/trivia", params={"q": "zzz"}).text

    def test_pages_through_many_rows(self, client: TestClient, database) -> None:
        with database.begin() as session:
            random_board(session, 120)
        first, second = (client.get(f"/benchmarks/large?page={page}").text for page in (1, 2))
        assert (first.count("<circle"), second.count("<circle")) == (101, 21)  # one belongs to the sign
        assert len(client.get("/benchmarks/large.json").json()["rows"]) == 120
        assert "Page 2 of 2" in client.get("/benchmarks/large?page=99").text

    def test_saves_as_csv_and_markdown(self, filled: TestClient) -> None:
        answer = filled.get("/benchmarks/trivia?format=csv&sort=name")
        names = [row["method"] for row in csv.DictReader(io.StringIO(answer.text))]
        assert names == sorted(names)
        assert answer.headers["content-disposition"] == 'attachment; filename="leaderboard.csv"'
        assert "| amber-70b |" in filled.get("/benchmarks/trivia?format=md").text


class TestSteering:
    @pytest.fixture
    def local(self, tmp_path: Path):
        """At the machine itself, on a database of its own."""
        database = open_database(tmp_path)
        with database.begin() as session:
            fill(session)
        app = create_app(Settings(data_dir=tmp_path))
        with TestClient(app, base_url="http://127.0.0.1:8765", client=("127.0.0.1", 1)) as client:
            yield client
        app.state.database.close()
        database.close()

    @staticmethod
    def token(client: TestClient, address: str) -> str:
        found = re.search(
            rf'action="{address}"><input[^>]*value="([0-9a-f]+)"', client.get("/studies/2").text
        )
        return found[1] if found else ""

    def test_pauses_and_resumes(self, local: TestClient) -> None:
        for what, state in (("pause", "paused"), ("resume", "running")):
            address = f"/studies/2/{what}"
            answer = local.post(address, data={"token": self.token(local, address)}, follow_redirects=False)
            assert (answer.status_code, answer.headers["location"]) == (303, "/studies/2")
            assert local.get("/studies/2.json").json()["study"]["state"] == state
            assert "set-cookie" not in answer.headers

    @pytest.mark.parametrize(
        ("headers", "token"),
        [
            ({}, "0" * 64),
            ({}, ""),
            ({"Origin": "http://evil.example"}, None),
            ({"Origin": "null"}, None),
            ({"Sec-Fetch-Site": "cross-site"}, None),
            ({"Content-Type": "text/plain"}, None),
        ],
    )
    def test_refuses_what_another_site_asks_for(self, local: TestClient, headers, token) -> None:
        given = self.token(local, "/studies/2/pause") if token is None else token
        body = f"token={given}"
        headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        assert local.post("/studies/2/pause", content=body, headers=headers).status_code == 403
        assert local.get("/studies/2.json").json()["study"]["state"] == "running"

    @pytest.mark.parametrize(
        "headers", [{"Host": "evil.example"}, {"X-Forwarded-For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}]
    )
    def test_only_at_this_machine(self, local: TestClient, headers: dict[str, str]) -> None:
        token = self.token(local, "/studies/2/pause")
        assert "Pause this study" not in local.get("/studies/2", headers=headers).text
        answer = local.post("/studies/2/pause", data={"token": token}, headers=headers)
        assert answer.status_code == 403
        assert "assay study pause" in answer.text

    def test_not_from_afar(self, filled: TestClient) -> None:
        assert "Pause this study" not in filled.get("/studies/2").text
        assert filled.post("/studies/2/pause").status_code == 403

    def test_large_and_unknown_are_refused(self, local: TestClient) -> None:
        assert local.post("/studies/2/pause", data={"token": "x" * 10_000}).status_code == 403
        assert local.post("/studies/2/destroy").status_code == 404


class TestEmpty:
    @pytest.mark.parametrize("path", ["/", "/studies", "/models", "/spend", "/events"])
    def test_database_says_what_to_do(self, client: TestClient, database, path: str) -> None:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "<code>assay " in answer.text

    def test_benchmark_has_a_page(self, client: TestClient, database) -> None:
        with database.begin() as session:
            Board.create(session, "void", ())
        assert "No model has a score yet" in client.get("/benchmarks/void").text
        assert client.get("/benchmarks/void.json").json()["rows"] == []

    def test_missing_tables_name_the_command(self, client: TestClient) -> None:
        answer = client.get("/")
        assert answer.status_code == 503
        assert "assay db upgrade" in answer.text
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["hint"] == "run: assay db upgrade"


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "says"),
        [
            ("/benchmarks/trivla", "known: trivia"),
            ("/benchmarks/a%00b", "list of benchmarks"),
            ("/benchmarks/trivia?sort=hue", "use one of: rank"),
            ("/benchmarks/trivia?page=-1", "page numbers start at 1"),
            ("/studies/99", "assay study list"),
            ("/studies/x", "list of studies"),
            ("/studies/99999999999999999999999", "list of studies"),
            ("/studies?state=odd", "use one of: waiting"),
            ("/studies?before=odd", "list of studies"),
            ("/models/nobody", "assay model"),
            ("/models/a%00b", "list of models"),
            ("/compare?benchmark=nope", "known: trivia"),
            ("/compare?benchmark=trivia&m=dune-34b&m=dune-34b", "two different ones"),
            ("/compare?benchmark=trivia&m=dune-34b&m=nobody", "nobody"),
            ("/prompts?benchmark=nope", "known: trivia"),
            ("/prompts/999999", "no prompt 999999"),
            ("/prompts/x", "list of benchmarks"),
            ("/nowhere", "There is no such page"),
            ("/static/nothing.css", "There is no such page"),
        ],
    )
    def test_are_pages_and_problems_that_say_what_to_do(
        self, filled: TestClient, path: str, says: str
    ) -> None:
        page = filled.get(path)
        assert page.status_code == 404
        assert says.lower() in page.text.lower()
        assert "All benchmarks</a>" in page.text
        problem = filled.get(path, headers={"Accept": "application/json"})
        assert problem.status_code == 404
        assert problem.headers["content-type"] == "application/problem+json"
        assert problem.json().keys() == {"type", "title", "status", "detail", "hint"}

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
    def test_pages_are_read_only(self, filled: TestClient, method: str) -> None:
        answer = filled.request(method, "/studies/1")
        assert answer.status_code == 405
        assert "assay command" in answer.text

    def test_crash_is_a_page_without_details(self, filled: TestClient, monkeypatch) -> None:
        def crash(*_: object) -> None:
            raise RuntimeError("secret detail")

        monkeypatch.setattr("agent.views.event_lines", crash)
        answer = filled.get("/events")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]

    def test_taken_port_is_one_line(self, tmp_path: Path) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(UsageError, match="--port"):
                serve(Settings(data_dir=tmp_path), port=other.getsockname()[1])


class TestSafety:
    @pytest.mark.parametrize("path", ["/", "/nowhere", "/static/style.css", "/healthz", "/studies.json"])
    def test_headers_are_on_every_answer(self, filled: TestClient, path: str) -> None:
        headers = filled.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"

    def test_hostile_text_is_inert(self, client: TestClient, database) -> None:
        hidden = "ctrl\x1b[31m\u202eevil\x07"
        long = HOSTILE + hidden + "x" * 1_000_000
        with database.begin() as session:
            board = Board.create(session, f"b {HOSTILE}", text=long)
            method = board.method(HOSTILE)
            study = board.study(method)
            board.buy(study, method, board.prompt_pks[0][:4])
            board.estimate(study, method, 0.5, 0.1)
            board.estimate(study, method, 0.5, 0.1, step=2)
            board.finish(study, HOSTILE + hidden)
            board.score(board.method(hidden), [1, 1])
            prompt = board.prompt_pks[0][0]
            session.add(
                Output(method_id=int(method.id or 0), prompt_id=prompt, text=long, finish_reason=HOSTILE)
            )
            session.add(WatchedItem(watcher=HOSTILE, key=hidden, error=long))
            events.emit(session, "odd" + HOSTILE, {HOSTILE: HOSTILE, "long": "y" * 1_000_000, "n": [hidden]})
            failed = events.recent(session, 1)[0]
            events.mark_failed(session, int(failed.id or 0), HOSTILE + hidden)
        (line,) = client.get("/benchmarks.json").json()["benchmarks"]
        name = quote(line["name"], safe="")
        for path in (
            "/",
            f"/benchmarks/{name}",
            f"/benchmarks/{name}?format=html",
            f"/prompts?benchmark={name}",
            f"/prompts/{prompt}",
            f"/compare?benchmark={name}&m={quote(HOSTILE)}&m={quote(hidden)}",
            f"/compare?benchmark={name}&m={quote(hidden)}",
            "/models",
            f"/models/{quote(HOSTILE, safe='')}",
            f"/models/{quote(hidden, safe='')}",
            "/studies",
            "/studies/1",
            "/spend",
            "/events",
            "/errors",
            f"/{HOSTILE}",
        ):
            answer = client.get(path)
            assert answer.status_code == (404 if path == f"/{HOSTILE}" else 200), path
            text = answer.text.replace(SCRIPT, "")
            assert "<style" not in text or "format=html" in path
            assert "<script" not in text, path
            assert "<img" not in text, path
            assert not set(text) & {"\x1b", "\u202e", "\x07"}, path
            assert len(text) < 100_000, path
        assert "ctrl[U+001B][31m[U+202E]evil[U+0007]" in client.get("/benchmarks/" + line["name"]).text

    def test_query_is_inert(self, filled: TestClient) -> None:
        for path in ("/benchmarks/trivia", "/studies"):
            for key in ("q", "sort", "dir", "page", "state", "before", "format", "refresh"):
                text = filled.get(path, params={key: HOSTILE}).text
                assert "<script" not in text
                assert "<img" not in text

    def test_benchmark_may_be_called_like_a_file(self, client: TestClient, database) -> None:
        with database.begin() as session:
            Board.create(session, "a/b.json")
        assert client.get("/benchmarks/a/b.json").headers["content-type"].startswith("application/json")
        assert client.get("/benchmarks/a/b.json").json()["benchmark"] == "a/b.json"


class TestCharts:
    @pytest.mark.parametrize("values", [[0.5], [], [0.0, 1.0], [0.31, 0.32], [0.5, 0.5], [float("nan")]])
    def test_axis_holds_all_values(self, values: list[float]) -> None:
        axis = axis_of(values, 0.0, 100.0)
        assert axis.low < axis.high
        assert axis.at(axis.low) == 0
        assert axis.at(axis.high) == 100
        assert all(axis.low <= value <= axis.high for value in values if value == value)
        assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)

    def test_curve_runs_left_to_right_and_upwards(self) -> None:
        curve = curve_of([(10, 0.2, 0.4, 0.6), (20, 0.4, 0.5, 0.6)])
        (x0, y0), (x1, y1) = curve.points
        assert x0 < x1
        assert y0 > y1
        assert len(curve.band.split()) == 4


def test_json_never_holds_what_json_lacks(filled: TestClient) -> None:
    text = filled.get("/benchmarks/trivia.json").text
    assert json.loads(text, parse_constant=pytest.fail)["rows"]


class TestShared:
    def test_value_is_made_once_per_state(self) -> None:
        made: list[int] = []
        shared: Shared[int] = Shared(kept=2)

        def make() -> int:
            made.append(len(made))
            return made[-1]

        assert [shared.get("a", state, make) for state in (1, 1, 2, 2)] == [0, 0, 1, 1]

    def test_longest_unused_name_goes_first(self) -> None:
        shared: Shared[str] = Shared(kept=2)
        for name in ("a", "b", "a", "c"):
            shared.get(name, 1, lambda name=name: name)
        assert shared.get("a", 1, lambda: "new") == "a"
        assert shared.get("b", 1, lambda: "new") == "new"

    def test_costly_value_rests(self, monkeypatch) -> None:
        monkeypatch.setattr("agent.boards.COSTLY_S", 0.0)
        monkeypatch.setattr("agent.boards.REST", 1e9)
        shared: Shared[int] = Shared(kept=2)
        assert shared.get("a", 1, lambda: sum(range(1000))) == shared.get("a", 2, lambda: 0)

    def test_failure_is_not_kept(self) -> None:
        shared: Shared[int] = Shared(kept=2)
        with pytest.raises(ZeroDivisionError):
            shared.get("a", 1, lambda: 1 // 0)
        assert shared.get("a", 1, lambda: 3) == 3

    def test_readers_get_the_value_before_while_one_makes_the_next(self) -> None:
        shared: Shared[str] = Shared(kept=2)
        shared.get("a", 1, lambda: "old")
        seen: list[str] = []

        def slow() -> str:
            other = threading.Thread(target=lambda: seen.append(shared.get("a", 2, lambda: "other")))
            other.start()
            other.join()
            return "new"

        assert shared.get("a", 2, slow) == "new"
        assert seen == ["old"]


def test_content_that_a_reader_has_is_not_sent_again(filled: TestClient) -> None:
    first = filled.get("/benchmarks/trivia.json")
    again = filled.get("/benchmarks/trivia.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = filled.get("/benchmarks/trivia.json", headers={"Accept-Encoding": "identity"})
    assert plain.json()["rows"] == first.json()["rows"]
