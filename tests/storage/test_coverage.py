"""What the leaderboard and its pages read, on every database."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from agent.web import create_app
from assay.settings import Settings
from storage.catalog import find_benchmark
from storage.coverage import load_coverage
from storage.database import Database
from storage.matrices import load_matrix
from tests.agent.boards import fill


@pytest.fixture
def filled(db: Database) -> Database:
    with db.begin() as session:
        fill(session)
    return db


def test_exact_scores_equal_those_of_the_matrix(filled: Database, tmp_path: Path) -> None:
    for _ in range(2):  # counted, then from the cache
        with filled.read() as session:
            benchmark = find_benchmark(session, "trivia")
            stored = load_matrix(session, benchmark)
            coverage = load_coverage(session, benchmark, tmp_path)
        np.testing.assert_array_equal(coverage.method_pks, stored.method_pks)
        np.testing.assert_allclose(coverage.exact_scores(), stored.matrix.benchmark_scores(), rtol=1e-6)


def test_every_page_answers(filled: Database, tmp_path: Path) -> None:
    url = filled.url.render_as_string(hide_password=False)
    app = create_app(Settings(data_dir=tmp_path, database_url=url))
    with TestClient(app) as client:
        for path in (
            "/",
            "/benchmarks/trivia",
            "/studies",
            "/studies/1",
            "/studies/1.json",
            "/events",
            "/readyz",
        ):
            assert client.get(path).status_code == 200, path
        for path in ("/benchmarks/x%00", "/studies/2147483647", "/studies/2147483648", "/studies?before=9"):
            assert client.get(path).status_code < 500, path
    app.state.database.close()
