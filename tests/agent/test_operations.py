import json
import logging
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics import Metrics
from agent.web import create_app
from assay.logs import JsonFormatter, TextFormatter, log_context, setup_logging
from assay.settings import Settings
from storage.tables import Output, utc_now
from tests.agent.boards import fill, open_database

BOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            found[s.name, tuple(sorted(s.labels.items()))] = s.value
    return found


@pytest.fixture
def database(tmp_path: Path):
    database = open_database(tmp_path)
    with database.begin() as session:
        board = fill(session)
        method = board.method("dune-34b")
        for i, latency in enumerate((20.0, 700.0, 90_000.0)):
            old = utc_now() - timedelta(hours=1) if i == 0 else utc_now()
            session.add(
                Output(
                    method_id=method.id,
                    prompt_id=board.prompt_pks[0][i],
                    latency_ms=latency,
                    created_at=old,
                )
            )
    yield database
    database.close()


class TestMetrics:
    def test_say_what_the_database_says(self, database) -> None:
        found = samples(Metrics(database).text().decode())
        assert found["assay_jobs", (("kind", "inference"), ("state", "done"))] == 3
        assert found["assay_jobs", (("kind", "inference"), ("state", "parked"))] == 1
        assert found["assay_studies", (("state", "running"),)] == 1
        where = (("benchmark", "trivia"), ("endpoint", "replay backend"))
        assert found["assay_spent_usd_total", where] == pytest.approx(0.0042)
        assert found["assay_event_failures_total", ()] == 1
        width = (("benchmark", "trivia"), ("quantile", "1.0"))
        assert found["assay_interval_width", width] == pytest.approx(2 * 1.96 * 0.2)
        champion = (("benchmark", "trivia"), ("state", "champion"))
        assert found["assay_estimator_versions", champion] == 1

    def test_latency_is_a_histogram_that_every_process_agrees_on(self, database) -> None:
        metrics = Metrics(database)
        first = metrics.text()
        endpoint = ("endpoint", "replay backend")
        found = samples(first.decode())
        assert found["assay_call_seconds_bucket", (endpoint, ("le", "0.05"))] == 1
        assert found["assay_call_seconds_bucket", (endpoint, ("le", "1.0"))] == 2
        assert found["assay_call_seconds_bucket", (endpoint, ("le", "+Inf"))] == 3
        assert found["assay_call_seconds_sum", (endpoint,)] == pytest.approx(90.72)
        again, fresh = samples(metrics.text().decode()), samples(Metrics(database).text().decode())
        same = [key for key in found if "seconds_" in key[0] or key[0].endswith("_total")]
        assert same
        assert all(found[key] == again[key] == fresh[key] for key in same)

    def test_page_is_what_prometheus_reads(self, database, tmp_path) -> None:
        with TestClient(create_app(Settings(data_dir=tmp_path))) as client:
            answer = client.get("/metrics")
            client.app.state.database.close()
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert samples(answer.text)["assay_info", (("version", "0.1.0"),)] == 1

    def test_board_asks_for_metrics_that_there_are(self, database) -> None:
        known = {name for name, _ in samples(Metrics(database).text().decode())}
        known |= {"assay_queue_oldest_seconds", "assay_notifications", "assay_budget"}  # nothing to say here
        known |= {"assay_call_failures_total"}
        for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                assert any(name in target["expr"] for name in known), target["expr"]


class TestLogs:
    @staticmethod
    def record(message: str = "done %d") -> logging.LogRecord:
        return logging.LogRecord("agent.x", logging.INFO, __file__, 1, message, (3,), None)

    def test_lines_carry_the_ids_of_the_work(self) -> None:
        with log_context(study_id=7), log_context(job_id=12):
            line = json.loads(JsonFormatter().format(self.record()))
            text = TextFormatter().format(self.record())
        assert (line["study_id"], line["job_id"], line["message"]) == (7, 12, "done 3")
        assert text.endswith("done 3 [study_id=7 job_id=12]")
        assert "study_id" not in json.loads(JsonFormatter().format(self.record()))

    def test_other_threads_keep_their_own_ids(self) -> None:
        seen: list[str] = []
        with log_context(study_id=7):
            thread = threading.Thread(target=lambda: seen.append(TextFormatter().format(self.record())))
            thread.start()
            thread.join()
        assert "study_id" not in seen[0]

    def test_a_message_is_one_line(self) -> None:
        line = JsonFormatter().format(self.record("two\nlines %d"))
        assert "\n" not in line
        assert json.loads(line)["message"] == "two\nlines 3"

    def test_set_up(self, capsys) -> None:
        root = logging.getLogger()
        before, level = root.handlers[:], root.level
        root.handlers[:] = []
        try:
            setup_logging("json", "warning")
            logging.getLogger("x").info("hidden")
            logging.getLogger("x").error("shown")
            assert json.loads(capsys.readouterr().err)["message"] == "shown"
        finally:
            root.handlers[:] = before
            root.setLevel(level)
