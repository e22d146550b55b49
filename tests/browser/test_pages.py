"""The main path through the pages in a real browser, on a system that runs."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from tests.agent.boards import Board
from tests.browser.live import working
from tests.world import World

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


def _names(page) -> list[str]:
    return page.locator("table.board tbody th.name > a").all_inner_texts()


def test_watch_a_live_study_finish(page, world: World) -> None:
    study = world.add_study(world.add_model("otter-3b"), max_prompts=40)
    page.goto("/")
    page.get_by_role("link", name="Studies").click()
    page.get_by_role("link", name=str(study), exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(re.compile("waiting|running"))
    page.evaluate("window.sameDocument = true")
    with working(world, 0.2):
        expect(page.get_by_role("status")).to_contain_text("done", timeout=40_000)
    expect(page.locator("dl.facts")).to_contain_text("40 of 40")
    assert page.evaluate("window.sameDocument")  # updated in place, not loaded again
    expect(page.locator("svg.curve")).to_be_visible()
    assert page.get_by_role("row").count() == 41  # the decisions, and their head


def test_sort_and_filter_a_leaderboard(page) -> None:
    page.goto("/")
    page.get_by_role("link", name="trivia").click()
    expect(page.locator("table.board tbody tr")).to_have_count(20)
    by_rank = _names(page)
    page.get_by_role("columnheader", name="Model").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="Model")).to_have_attribute("aria-sort", "ascending")
    assert _names(page) == sorted(by_rank)
    page.get_by_label("Model name").fill("-70B")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**70B*")
    assert _names(page) == [name for name in sorted(by_rank) if name.endswith("-70b")]


def test_compare_two_models_by_keyboard(page) -> None:
    page.goto("/benchmarks/trivia")
    for name in ("amber-70b", "dune-70b"):
        page.get_by_label(f"Choose {name} for a comparison").focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Compare").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("amber-70b against dune-70b")
    expect(page.get_by_role("row", name=re.compile("120 common prompts"))).to_contain_text("exact")


def test_pause_and_resume(page, world: World) -> None:
    study = world.add_study(world.add_model("otter-3b"), max_prompts=60)
    with working(world, 0.3):
        page.goto(f"/studies/{study}")
        expect(page.get_by_role("status")).to_contain_text("running")
        page.get_by_role("button", name="Pause this study").click()
        expect(page.get_by_role("status")).to_contain_text("paused by hand")
        bought = len(world.acquired())
        page.get_by_role("button", name="Resume this study").click()
        expect(page.get_by_role("status")).to_contain_text("done", timeout=40_000)
    assert len(world.acquired()) == 60 > bought


def test_read_an_error(page, world: World) -> None:
    with world.database.begin() as session:
        board = Board.create(session, "other", (8,))
        method = board.method("broken-1b")
        board.buy(board.study(method), method, board.prompt_pks[0][:3])
    page.goto("/")
    page.get_by_role("link", name="Errors").click()
    group = page.get_by_role("row", name=re.compile("broken-1b")).first
    expect(group).to_contain_text("endpoint refused the connection")
    page.goto("/studies/999")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    expect(page.locator("main")).to_contain_text("assay study list")


def test_reads_without_javascript(browser, address: str) -> None:
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    for path in (
        "/",
        "/benchmarks/trivia",
        "/models/amber-70b",
        "/prompts?benchmark=trivia",
        "/spend",
        "/errors",
    ):
        assert page.goto(path).status == 200
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(browser, address: str, scheme: str) -> None:
    context = browser.new_context(
        base_url=address, viewport={"width": 390, "height": 800}, color_scheme=scheme
    )
    page = context.new_page()
    for path in (
        "/",
        "/benchmarks/trivia",
        "/models",
        "/models/amber-70b",
        "/prompts?benchmark=trivia",
        "/prompts/1",
        "/compare?benchmark=trivia&m=amber-70b&m=dune-70b",
        "/studies",
        "/events",
    ):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    context.close()


CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll("main *, header *, footer")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.closest("svg, .hidden, .skip")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 40)}`);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, address: str, world: World, scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3: a contrast of at least 4.5 to 1."""
    world.add_study(world.add_model("otter-3b"))
    context = browser.new_context(base_url=address, color_scheme=scheme)
    page = context.new_page()
    for path in ("/", "/benchmarks/trivia", "/studies/1", "/studies", "/spend", "/prompts?benchmark=trivia"):
        page.goto(path)
        assert page.evaluate(CONTRAST) == [], path
    context.close()


LABELS = """() => [...document.querySelectorAll("input:not([type=hidden]), button, select")]
  .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim()))
  .map((e) => e.outerHTML)"""


def test_every_field_has_a_label_and_every_table_its_heads(browser, address: str, world: World) -> None:
    context = browser.new_context(base_url=address)
    page = context.new_page()
    for path in ("/benchmarks/trivia", "/models", "/compare?benchmark=trivia", "/prompts/1", "/spend"):
        page.goto(path)
        assert page.evaluate(LABELS) == [], path
        heads = page.evaluate("[...document.querySelectorAll('thead th')].filter((h) => !h.scope).length")
        assert heads == 0, path
    context.close()


def test_hostile_text_runs_nowhere(page, world: World) -> None:
    evil = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\u202eabc'
    with world.database.begin() as session:
        board = Board.create(session, evil, (6,), text=evil)
        method = board.method(evil)
        study = board.study(method)
        board.buy(study, method, board.prompt_pks[0][:3])
        board.estimate(study, method, 0.5, 0.1)
        board.finish(study, evil)
        first = board.prompt_pks[0][0]
    name = quote(evil, safe="")
    for path in (
        "/",
        f"/benchmarks/{name}",
        f"/models/{name}",
        "/studies",
        f"/studies/{study}",
        "/errors",
        f"/prompts/{first}",
        f"/prompts?benchmark={name}",
        "/events",
        "/spend",
        "/models",
    ):
        assert page.goto(path).status == 200, path
        assert page.evaluate("window.hit") is None, path
        assert page.evaluate("document.images.length") == 0, path
        assert "\u202e" not in page.inner_text("body"), path
