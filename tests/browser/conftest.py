"""Chromium and a running system for the browser tests; without either library or browser they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.live import open_world, served
from tests.world import World

CHROMIUM = os.environ.get("ASSAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install it, or set ASSAY_CHROMIUM")
    with (
        api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as browser,
    ):
        yield browser


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = open_world(tmp_path, max_attempts=1)
    yield opened
    opened.database.close()


@pytest.fixture
def address(world: World) -> Iterator[str]:
    with served(world) as address:
        yield address


@pytest.fixture
def page(browser, address: str):
    """A page of the running system; a script error or a refused resource fails the test."""
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if _is_ours(said) else None)
    page.set_default_timeout(20_000)
    yield page
    context.close()
    assert not wrong


def _is_ours(said) -> bool:
    """An answer of 404 is no fault of the page; a refused script or style is."""
    return said.type == "error" and "the server responded with a status of" not in said.text
