"""An endpoint for the session, a world per test."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.endpoint import Endpoint, serving
from tests.workers.tiny import write_tiny_model
from tests.world import World


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a tiny Llama; skipped where the extra `local` is not installed."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs the extra `local`")
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World.open(tmp_path)
    yield opened
    opened.database.close()
