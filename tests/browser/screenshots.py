"""Pictures of the pages for docs/images: python -m tests.browser.screenshots [FOLDER] [--all].

Simulated models on a small benchmark, evaluated by the real agent. With --all, every page in light, dark and
at phone width, to look them over; without, only those that the documentation shows.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from storage import ledger
from storage.events import emit
from storage.tables import WatchedItem
from tests.browser.live import open_world, served, working
from tests.world import World

PAGES = {
    "benchmarks": "/",
    "leaderboard": "/benchmarks/trivia",
    "models": "/models",
    "model": "/models/otter-3b",
    "compare": "/compare?benchmark=trivia&m=otter-3b&m=amber-70b",
    "prompts": "/prompts?benchmark=trivia",
    "prompt": "/prompts/7",
    "studies": "/studies",
    "study": "/studies/2",
    "spend": "/spend",
    "events": "/events",
    "errors": "/errors",
}
SHOWN = {"leaderboard": 980, "study": 1000, "compare": 900, "model": 1000, "prompts": 1000, "spend": 760}
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]


def fill(world: World) -> None:
    """Finished, paused, failing and running studies."""
    price = {"per_call": 0.0011}
    names = ("otter-3b", "lynx-9b", "falconet-40b", "osprey-14b")
    replay = {"backend": "replay", "matrix": str(world.matrix), "price": price, "max_tokens": 128}
    with world.database.begin() as session:
        ledger.set_cap(session, "overall", 0, "usd", 250_000)
    pks = [world.add_model(name, **replay) for name in names]
    for pk, most in zip(pks[:3], (40, 30, 30), strict=True):
        world.add_study(pk, max_prompts=most, max_usd=0.09)
    with working(world):
        time.sleep(0.1)
        while any(s.state in ("waiting", "running") for s in world.studies()):
            time.sleep(0.1)
    bad = world.add_model("flaky-1b", **replay, row="otter-3b", failure_rate=0.9)
    with world.database.begin() as session:
        session.add(WatchedItem(watcher="model-folder", key="lynx.toml", fingerprint="a"))
        said = "broken.toml: unknown key 'bakend', did you mean 'backend'?"
        session.add(WatchedItem(watcher="model-folder", key="broken.toml", fingerprint="b", error=said))
        emit(session, "watcher.error", {"watcher": "model-folder", "file": "broken.toml", "error": said})
    world.add_study(bad, max_prompts=20, max_usd=0.09)
    world.add_study(pks[3], max_prompts=40, max_usd=0.09)
    with working(world, 0.3):
        time.sleep(2.5)


def take(browser: Browser, address: str, folder: Path, everything: bool) -> None:
    """One file per page and look."""
    looks = (("light", 1300), ("dark", 1300), ("light", 390)) if everything else (("light", 1320),)
    for scheme, width in looks:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for name, path in PAGES.items():
            if not everything and name not in SHOWN:
                continue
            page.goto(address + path)
            suffix = f"-{scheme}-{width}" if everything else ""
            target = folder / f"{name}{suffix}.png"
            clip = {"x": 0, "y": 0, "width": width, "height": SHOWN.get(name, 900)}
            page.screenshot(path=target, full_page=True, **({} if everything else {"clip": clip}))
            compress(target)
        page.close()


def compress(path: Path) -> None:
    """A palette of 256 colours: a quarter of the size, no difference to see on flat pages."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(256).save(path, optimize=True)


def main() -> None:
    """Make the world, take the pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/images"))
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp())
    try:
        world = open_world(scratch, max_attempts=2)
        fill(world)
        with served(world) as address, sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            with playwright.chromium.launch(executable_path=chromium, args=FLAGS) as browser:
                take(browser, address, options.folder, options.all)
        world.database.close()
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
