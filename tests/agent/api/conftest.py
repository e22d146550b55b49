"""An API over a filled database, and a client per scope."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agent.web import create_app
from assay.settings import Settings
from assay.specs import WatcherSpec
from storage import tokens
from storage.database import Database
from tests.agent.boards import fill, open_database

ROOT = "/api/v1"
SECRET = "of the registry"


@dataclass
class Service:
    """The running application, its database, and a token per scope."""

    client: TestClient
    database: Database
    tokens: dict[str, str]

    def call(self, method: str, path: str, scope: str | None = "admin", **given: Any) -> Any:
        headers = {} if scope is None else {"Authorization": f"Bearer {self.tokens[scope]}"}
        headers |= given.pop("headers", {})
        return self.client.request(method, ROOT + path, headers=headers, **given)

    def database_files(self) -> list[Path]:
        return list(Path(self.database.url.database or "").parent.glob("assay.db*"))


@cache
def _filled() -> tuple[bytes, dict[str, str]]:
    """A filled database file and its tokens, made once: migrating and filling cost half a second."""
    with tempfile.TemporaryDirectory() as name:
        database = open_database(Path(name))
        with database.begin() as session:
            fill(session)
            made = {scope: tokens.create(session, scope, scope)[1] for scope in tokens.SCOPES}
        with database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        return (Path(name) / "assay.db").read_bytes(), made


REGISTRY = WatcherSpec(
    kind="mlflow",
    name="registry",
    url="http://127.0.0.1:9",
    model={"backend": "replay", "matrix": "/m", "row": "{name}", "price": {"free": True}},
    webhook_secret_env="ASSAY_TEST_HOOK_SECRET",
)


def open_service(folder: Path, **settings: Any) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ASSAY_TEST_HOOK_SECRET", SECRET)
        yield from _open_service(folder, watch=[REGISTRY], **settings)


def _open_service(folder: Path, **settings: Any) -> Iterator[Service]:
    content, made = _filled()
    (folder / "assay.db").write_bytes(content)
    database = Database(f"sqlite:///{folder / 'assay.db'}")
    app = create_app(Settings(data_dir=folder, **settings))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(client, database, made)
        app.state.database.close()
    database.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    yield from open_service(tmp_path)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Service]:
    """Asks for a token for reading too."""
    yield from open_service(tmp_path, require_token=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For tests that change nothing."""
    yield from open_service(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def shared_locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For tests that change nothing; asks for a token for reading too."""
    yield from open_service(tmp_path_factory.mktemp("locked"), require_token=True)
