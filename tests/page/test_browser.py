"""The page in a real Chromium, found by roles as a screen reader finds it."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from benchmarks.page.browser import CHROMIUM, chromium, serving
from benchmarks.page.scene import Ask, Scene
from benchmarks.page.scenes import six, sixty_four
from local_cluster.patience import HANG_S
from muster.adapters.page import board as boards
from muster.adapters.page import server as servers
from muster.adapters.page.access import Access
from muster.adapters.page.layout import arrange
from muster.adapters.page.server import BrowserLimits, PageServer
from muster.domain.alternatives import Alternatives, not_known
from tests.gangs.world import node
from tests.page.needs_browser import why_skipped
from tests.page.test_access import Api

DETAIL_MS = 5000
"""So often the page asks about the gang that is shown."""
SKIPPED = why_skipped(CHROMIUM, os.environ)
pytestmark = [
    pytest.mark.skipif(bool(SKIPPED), reason=SKIPPED),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=1000 * HANG_S)
    async with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "EVERY_S", 0.02)
    monkeypatch.setattr(boards, "PAUSE_SHARE", 0)
    monkeypatch.setattr(servers, "SHUTDOWN_S", 0.01)


@asynccontextmanager
async def opened(browser: Browser, url: str, own_clock: bool = False, **options: Any) -> AsyncIterator[Page]:
    """A tab. It fails if the page's own code fails, or breaks the Content-Security-Policy.

    `own_clock`: the test can put its clock forward.
    """
    tab = await browser.new_page(**options)
    tab.set_default_timeout(1000 * HANG_S)
    if own_clock:
        await tab.clock.install()
    problems: list[str] = []
    tab.on("pageerror", lambda problem: problems.append(str(problem)))
    tab.on(
        "console",
        lambda message: problems.append(message.text) if "Security Policy" in message.text else None,
    )
    await tab.goto(url)
    try:
        yield tab
    finally:
        await tab.close()
    assert problems == []


async def live(tab: Page) -> None:
    await expect(tab.get_by_role("status")).to_have_text("Live")


async def test_a_gang_that_waits_says_why_and_what_would_help(browser: Browser) -> None:
    async with serving(six()) as (page, _), opened(browser, page.url) as tab:
        waiting = tab.get_by_role("region", name="Waiting for a place").get_by_role("button")
        await expect(waiting.first).to_have_accessible_name("llm/rlhf, unplaceable, position 1, 3 of 3 here")
        await waiting.first.click()
        gang = tab.get_by_role("article", name="Gang")
        await expect(gang.get_by_role("heading", name="llm/rlhf")).to_be_focused()
        await expect(gang).to_contain_text("The gang needs 24 nvidia.com/gpu for 3 members")
        await expect(gang).to_contain_text("It would help (tried, it fits then)")
        await expect(gang.get_by_role("heading", name="Timeline")).to_be_visible()
        await tab.keyboard.press("Escape")
        await expect(waiting.first).to_be_focused()
        await tab.get_by_role("searchbox", name="Filter gangs").fill("sweep")
        await expect(tab.get_by_role("complementary", name="Gangs").get_by_role("button")).to_have_count(1)


async def test_a_gang_that_runs_has_its_links(browser: Browser) -> None:
    scene = six()
    async with (
        serving(scene) as (page, _),
        opened(browser, f"{page.url}#gang={scene.key('ring-of-four')}") as tab,
    ):
        links = tab.get_by_role("table", name="Links between the gang's GPUs")
        await expect(links.get_by_role("row")).to_have_count(5)
        await expect(tab.get_by_role("article", name="Gang")).to_contain_text("proven optimal")


async def test_a_gang_with_a_place_says_why_it_is_not_elsewhere(browser: Browser) -> None:
    scene = six()
    urls: list[str] = []
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        tab.on("request", lambda request: urls.append(request.url) if "/api/alter" in request.url else None)
        await live(tab)
        await tab.get_by_role("button", name="speech/ring-of-four").click()
        table = tab.get_by_role("table", name="Alternatives")
        await expect(table.get_by_role("columnheader").last).to_have_text("Compared with node pair-1")
        row = table.get_by_role("row").filter(has=tab.get_by_role("rowheader", name="node mesh-1"))
        await expect(row.get_by_role("cell")).to_have_text("weakest link 25 GB/s instead of 300 GB/s")
        gang = tab.get_by_role("article", name="Gang")
        await expect(gang).to_contain_text("the cluster as it is now, without the gang itself")
        assert len(urls) == 1, "it is not asked again with the rest of the gang"
        scene.delete(*[uid for uid in scene.pods if uid.startswith("speech/")][:1])
        async with tab.expect_response(re.compile("/api/alternatives")):
            await tab.get_by_role("button", name="Compute alternatives again").click()
        await expect(table).to_be_visible()
        await tab.keyboard.press("Escape")
        await tab.get_by_role("button", name="llm/rlhf").click()
        await expect(tab.get_by_role("heading", name="Timeline")).to_be_visible()
        await expect(table).to_have_count(0)
        assert len(urls) == 2, "a gang without a place has no alternatives"


async def test_a_busy_service_says_that_alternatives_are_not_known(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = six()

    async def busy(_: str) -> Alternatives:
        return not_known("Too many ask now.")

    monkeypatch.setattr(scene, "alternatives", busy)
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        await tab.get_by_role("button", name="speech/ring-of-four").click()
        await expect(tab.get_by_role("article", name="Gang")).to_contain_text("Not known. Too many ask now.")


async def test_the_map_is_a_grid_for_the_keyboard(browser: Browser) -> None:
    async with serving(six()) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        grid = tab.get_by_role("grid", name="GPUs by node")
        await expect(grid).to_have_attribute("aria-rowcount", "6")
        focus = tab.locator(":focus")
        await grid.get_by_role("gridcell").first.focus()
        await expect(focus).to_have_accessible_name("hgx-1, GPU 0: llm/pretrain, NVLink domain A of the node")
        for keys, expected in (
            (["ArrowRight", "ArrowDown"], "hgx-2, GPU 1: llm/pretrain"),
            (["PageDown", "Home"], "mesh-1, GPU 0: reserved for search/embed"),
            (["ArrowDown", "End"], "pair-1, GPU 7: speech/ring-of-four, NVLink domain B of the node"),
            (["PageUp", "ArrowDown", "ArrowDown"], "hgx-3, GPU 7: free"),
            (["ArrowLeft", "ArrowLeft"], "hgx-3, GPU 5: unhealthy"),
            (["Control+End"], "pair-2, GPU 7: may be taken"),
            (["ArrowDown", "ArrowRight"], "pair-2, GPU 7: may be taken"),
            (["Control+Home", "ArrowUp", "ArrowLeft"], "hgx-1, GPU 0: llm/pretrain"),
        ):
            for key in keys:
                await tab.keyboard.press(key)
            await expect(focus).to_have_accessible_name(re.compile(f"^{re.escape(expected)}"))
        assert await tab.locator('[role="gridcell"][tabindex="0"]').count() == 1
        await tab.keyboard.press("Enter")
        await expect(tab.get_by_role("heading", name="llm/pretrain")).to_be_focused()


FRAMES = 100
FIRST_CELL = """() => {
    const box = document.querySelector('[role="gridcell"]').getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
}"""


async def test_small_cells_have_another_sign_than_their_colour(browser: Browser) -> None:
    scene = six()
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        note = tab.get_by_text("Cells are too small for letters and marks.")
        await expect(note).to_be_hidden()
        smaller = tab.get_by_role("button", name="Smaller cells")
        for _ in range(8):
            await smaller.click()
        await expect(note).to_be_visible()
        inspector, canvas = tab.locator("#inspector"), tab.locator("#canvas")
        for _ in range(FRAMES):  # the grid follows the map some frames later
            await canvas.hover(position={"x": 1, "y": 1})
            await tab.mouse.move(*await tab.evaluate(FIRST_CELL))
            await tab.evaluate("() => new Promise(requestAnimationFrame)")
            if "GPU 0: llm/pretrain" in (await inspector.text_content() or ""):
                break
        await expect(inspector).to_contain_text("GPU 0: llm/pretrain")
        await tab.get_by_role("gridcell").first.focus()
        await tab.keyboard.press("ArrowRight")
        await expect(tab.locator("#inspector")).to_contain_text("GPU 1: llm/pretrain")
        for _ in range(8):
            await tab.get_by_role("button", name="Larger cells").click()
        await expect(note).to_be_hidden()


async def test_the_map_is_a_table_too(browser: Browser) -> None:
    scene = six()
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        table = tab.get_by_role("table", name="The map as a table")
        await expect(table).to_have_count(0)
        await tab.get_by_text("The map as a table").click()
        heads = await table.get_by_role("columnheader").all_text_contents()
        assert heads[:4] == ["rack", "GPUs", "Free", "Of gangs"]
        row = table.get_by_role("row").filter(has=tab.get_by_role("rowheader", name="rack-1"))
        assert await row.get_by_role("cell").all_text_contents() == [
            *("24", "0", "16", "0", "2", "0", "0", "1", "1"),
            "llm/pretrain: 16",
        ]
        second = table.get_by_role("row").filter(has=tab.get_by_role("rowheader", name="rack-2"))
        await expect(second.get_by_role("cell").nth(1)).to_have_text("10")
        scene.submit(Ask("new", "first", 1, 2, "node"))
        await expect(second.get_by_role("cell").nth(1)).to_have_text("8")
        await expect(second.get_by_role("cell").last).to_contain_text("new/first: 2")


async def test_the_grid_goes_on_beyond_the_nodes_that_have_elements(browser: Browser) -> None:
    scene = sixty_four()
    names = arrange(scene.snapshot(), "nvidia.com/gpu.product").names
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        grid, focus = tab.get_by_role("grid", name="GPUs by node"), tab.locator(":focus")
        await expect(grid).to_have_attribute("aria-rowcount", str(len(names)))
        await tab.locator('[data-node="0"][data-gpu="0"]').focus()
        for at in range(1, len(names)):
            await tab.keyboard.press("ArrowDown")
            await expect(focus).to_have_accessible_name(re.compile(f"^{names[at]}, GPU 0: "))
            assert await grid.get_by_role("row").count() == 24
            row = focus.locator("xpath=..")
            await expect(row).to_have_attribute("aria-rowindex", str(at + 1))
        for keys, node, gpu in (
            (["Control+Home"], 0, 0),
            (["Control+End"], len(names) - 1, 3),
            (["ArrowUp"] * 30, len(names) - 31, 3),
            (["PageUp", "End"], 24, 7),
        ):
            for key in keys:
                await tab.keyboard.press(key)
            await expect(focus).to_have_accessible_name(re.compile(f"^{names[node]}, GPU {gpu}: "))
        assert await tab.locator('[role="gridcell"][tabindex="0"]').count() == 1


async def test_changes_appear_by_themselves(browser: Browser) -> None:
    scene = six()
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        scene.submit(Ask("new", "first", 1, 2, "node"))
        starting = tab.get_by_role("region", name="Starting").get_by_role("button", name="new/first")
        await expect(starting).to_be_visible()
        await expect(tab.get_by_role("gridcell", name="reserved for new/first")).to_have_count(2)
        scene.bind("first")
        await expect(tab.get_by_role("region", name="Running").get_by_text("first")).to_be_visible()
        await expect(tab.get_by_role("gridcell", name=re.compile(r"GPU \d: new.first"))).to_have_count(2)
        scene.delete("new/first-0")
        await expect(tab.get_by_role("gridcell", name="new/first")).to_have_count(0)


async def test_changes_take_no_click_away_and_repeat_no_alert(browser: Browser) -> None:
    scene = six()
    scene.leads = False
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        await tab.evaluate(
            """() => {
                window.alerts = 0;
                const options = {childList: true, characterData: true, subtree: true};
                const banner = document.getElementById('banner');
                new MutationObserver(() => window.alerts++).observe(banner, options);
                window.drawn = new Promise(done => document.addEventListener('muster:drawn', done));
            }"""
        )
        await tab.get_by_role("button", name="llm/rlhf").hover()
        await tab.mouse.down()
        scene.submit(Ask("new", "first", 1, 1))
        await tab.evaluate("drawn.then(() => new Promise(done => setTimeout(done, 100)))")  # the list is due
        await tab.mouse.up()
        await expect(tab.get_by_role("heading", name="llm/rlhf")).to_be_focused()
        await tab.keyboard.press("Escape")
        await expect(tab.get_by_role("button", name="new/first")).to_be_visible()
        assert await tab.evaluate("alerts") == 0


async def test_selected_text_of_a_gang_stays_selected(browser: Browser) -> None:
    scene = six()
    async with (
        serving(scene) as (page, _),
        opened(browser, f"{page.url}#gang={scene.key('rlhf')}", own_clock=True) as tab,
    ):
        await live(tab)
        await tab.get_by_role("heading", name="llm/rlhf").select_text()
        async with tab.expect_response(re.compile("/api/gang")):
            scene.delete("llm/rlhf-2")
        await tab.evaluate("new Promise(requestAnimationFrame)")
        assert "rlhf" in await tab.evaluate("getSelection().toString()")
        await tab.evaluate("getSelection().empty()")
        await tab.clock.fast_forward(DETAIL_MS)
        await expect(tab.get_by_role("article", name="Gang")).to_contain_text("2 of 3 here")


HOSTILE = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>\u202e"


async def test_names_from_the_cluster_are_text(browser: Browser) -> None:
    labels = {"topology.kubernetes.io/rack": HOSTILE, "nvidia.com/gpu.product": HOSTILE}
    scene = Scene()
    scene.start([node("a", 4, labels)])
    scene.submit(Ask("ns", HOSTILE, 2, 1, "node"), Ask("ns", HOSTILE + "2", 2, 4, HOSTILE))
    scene.bind(*scene.planned())
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        shown = HOSTILE.replace("\u202e", "\\u202e")
        for name in (shown, shown + "2"):
            await tab.get_by_role("button", name=f"ns/{name},").click()
            await expect(tab.get_by_role("heading", name=f"ns/{name}", exact=True)).to_be_visible()
            await expect(tab.get_by_role("heading", name="Timeline")).to_be_visible()
            await tab.keyboard.press("Escape")
        await tab.get_by_role("gridcell").first.focus()
        assert await tab.locator("script").count() == 1
        assert await tab.locator("img:not([src='icon.svg'])").count() == 0
        assert await tab.evaluate("window.pwned") is None


async def test_the_browser_runs_no_inline_code(browser: Browser) -> None:
    async with serving(six()) as (page, _):
        tab = await browser.new_page()
        await tab.goto(page.url)
        violations = await tab.evaluate(
            """async () => {
                const seen = [];
                addEventListener('securitypolicyviolation', event => seen.push(event.effectiveDirective));
                const add = (name, text) => {
                    const made = document.createElement(name);
                    if (name === 'script') made.text = text; else made.textContent = text;
                    document.body.append(made);
                };
                const tries = [
                    () => { document.body.innerHTML += '<i onclick="window.pwned = 1">x</i>'; },
                    () => add('script', 'window.pwned = 1'),
                    () => add('style', 'body { color: red }'),
                    () => document.body.setAttribute('onload', 'window.pwned = 1'),
                    () => { fetch('https://example.invalid/').catch(() => {}); },
                ];
                for (const attempt of tries) { try { attempt(); } catch {} }
                await new Promise(done => setTimeout(done, 50));
                return [...new Set(seen)].sort();
            }"""
        )
        assert "connect-src" in violations
        assert "style-src-elem" in violations
        assert "require-trusted-types-for" in violations
        assert await tab.evaluate("window.pwned") is None
        await tab.close()


async def test_a_lost_connection_goes_on_where_it_was(browser: Browser) -> None:
    scene = six()
    async with serving(scene) as (page, board), opened(browser, page.url) as tab:
        await live(tab)
        states: list[str] = []
        tab.on(
            "request", lambda request: states.append(request.url) if request.url.endswith("/state") else None
        )
        await page.stop()
        await expect(tab.get_by_role("status")).to_have_text("Disconnected")
        await expect(tab.get_by_role("alert").first).to_contain_text(
            "The service does not answer. Last news at"
        )
        async with board.connect_browser():
            scene.submit(Ask("new", "meanwhile", 1, 1))
            again = PageServer(board, None, BrowserLimits(), scene.alternatives)
            await again.start("127.0.0.1", int(page.url.rstrip("/").rpartition(":")[2]))
            await live(tab)
        await expect(tab.get_by_role("button", name="new/meanwhile")).to_be_visible()
        assert states == []
        await expect(tab.get_by_role("alert").first).to_be_hidden()
        await again.stop()
        await expect(tab.get_by_role("alert").first).to_contain_text("The service does not answer.")
        await again.start("127.0.0.1", int(page.url.rstrip("/").rpartition(":")[2]))
        await live(tab)
        await expect(tab.get_by_role("alert").first).to_be_hidden()
        await again.stop()


async def test_another_process_of_the_service_is_read_anew(browser: Browser) -> None:
    async with serving(six()) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        await page.stop()
        await expect(tab.get_by_role("status")).to_have_text("Disconnected")
        scene = Scene()
        scene.start([node("alone", 4)])
        async with serving(scene, port=int(page.url.rstrip("/").rpartition(":")[2])):
            await expect(tab.get_by_role("gridcell", name="alone, GPU 0")).to_be_visible()
            await live(tab)
            await expect(tab.get_by_role("row")).to_have_count(1)


async def test_a_token_is_asked_for_and_a_bad_one_learns_nothing(browser: Browser) -> None:
    scene = six()
    async with (
        serving(scene, access=Access(Api().post)) as (page, _),
        opened(browser, f"{page.url}#gang={scene.key('rlhf')}", own_clock=True) as tab,
    ):
        dialog = tab.get_by_role("dialog", name="This page needs a token")
        await expect(dialog).to_be_visible()
        for token, alert in (
            ("bad", "A bearer token that the API server knows"),
            ("stranger", "may not get"),
        ):
            await dialog.get_by_label("Bearer token").fill(token)
            await dialog.get_by_role("button", name="Open").click()
            await expect(dialog.get_by_role("alert")).to_contain_text(alert)
            assert "hgx" not in await tab.content()
        await dialog.get_by_label("Bearer token").fill("good")
        await tab.keyboard.press("Enter")
        await live(tab)
        await expect(dialog).to_be_hidden()
        await tab.clock.fast_forward(DETAIL_MS)
        await expect(tab.get_by_role("heading", name="Why it waits")).to_be_visible()
        await tab.keyboard.press("Escape")
        await expect(tab.get_by_role("button", name="llm/rlhf")).to_be_visible()
        await tab.reload()
        await live(tab)


async def test_an_empty_cluster_says_what_is_missing(browser: Browser) -> None:
    scene = Scene()
    scene.start([])
    scene.leads = False
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await expect(tab.get_by_text("No node with GPUs.")).to_be_visible()
        await expect(tab.get_by_text("No gang waits for a place.")).to_be_visible()
        await expect(tab.get_by_role("alert").first).to_contain_text("This replica does not lead")
        scene.leads = True
        scene.change(node("first", 4))
        await expect(tab.get_by_role("gridcell", name="first, GPU 0")).to_be_visible()
        await expect(tab.get_by_role("alert").first).to_be_hidden()


async def test_the_theme_follows_the_system_unless_one_is_chosen(browser: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    corner = "[...document.getElementById('canvas').getContext('2d').getImageData(2, 2, 1, 1).data]"
    async with serving(six()) as (page, _), opened(browser, page.url, color_scheme="light") as tab:
        await live(tab)
        light, light_canvas = await tab.evaluate(ground), await tab.evaluate(corner)
        await tab.get_by_label("Theme").select_option("Dark")
        await expect(tab.locator("html")).to_have_attribute("data-theme", "dark")
        await tab.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )  # two frames
        assert (await tab.evaluate(corner))[0] < 64
        assert await tab.evaluate(ground) != light
        assert light_canvas[0] > 192
        await tab.reload()
        await live(tab)
        assert await tab.evaluate(ground) != light


async def test_a_cordoned_node_is_told_in_words(browser: Browser) -> None:
    scene = six()
    async with serving(scene) as (page, _), opened(browser, page.url) as tab:
        await live(tab)
        cells = tab.get_by_role("gridcell", name="node is cordoned")
        await expect(cells).to_have_count(8)
        scene.change(replace(scene.snapshot().nodes["hgx-1"].node, unschedulable=True))
        await expect(cells).to_have_count(16)


async def test_many_tabs_are_refused_politely(browser: Browser) -> None:
    async with (
        serving(six(), limits=BrowserLimits(clients=1)) as (page, _),
        opened(browser, page.url) as first,
    ):
        await live(first)
        async with opened(browser, page.url) as second:
            await expect(second.get_by_role("alert").first).to_contain_text(
                "1 browsers are connected already"
            )
