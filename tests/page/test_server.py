"""The page over HTTP, without a browser: headers, state, changes, slow readers, hosts and tokens."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from benchmarks.page.browser import serving
from benchmarks.page.scene import Ask, Scene
from benchmarks.page.scenes import six
from local_cluster.patience import HANG_S
from muster.adapters.page import board as boards
from muster.adapters.page.access import Access
from muster.adapters.page.layout import FIRST_GANG
from muster.adapters.page.server import BrowserLimits, PageServer
from tests.page.test_access import Api


@pytest.fixture
def scene() -> Scene:
    return six()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=HANG_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "EVERY_S", 0.0)
    monkeypatch.setattr(boards, "PAUSE_SHARE", 0)


async def state_of(http: aiohttp.ClientSession, page: PageServer) -> Any:
    async with http.get(page.url + "api/state") as answer:
        assert answer.status == 200
        return await answer.json()


async def until(holds: Callable[[], bool]) -> None:
    """Give the loop's other tasks their turns until it holds."""
    async with asyncio.timeout(HANG_S):
        for _ in iter(holds, True):
            await asyncio.sleep(0.001)


async def next_event(stream: aiohttp.ClientResponse) -> tuple[str, str, Any]:
    """Return the type, id and data of the next event."""
    fields = {"event": "message", "id": "", "data": ""}
    while True:
        line = (await stream.content.readline()).decode()
        assert line, "the stream ended"
        name, _, value = line.rstrip("\n").partition(": ")
        if line == "\n" and fields["data"]:
            return fields["event"], fields["id"], json.loads(fields["data"])
        fields |= {name: value} if name in fields else {}


async def until_cells(stream: aiohttp.ClientResponse) -> list[tuple[str, str, Any]]:
    """Return the events up to the first one with cells. A look may see a gang in the list first."""
    events = [await next_event(stream)]
    while "cells" not in events[-1][2]:
        events.append(await next_event(stream))
    return events


async def test_every_answer_forbids_inline_code(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        for path in (
            "",
            "app.js",
            "style.css",
            "icon.svg",
            "api/state",
            "api/events",
            "nothing",
            "../app.py",
        ):
            async with http.get(page.url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with http.post(page.url + "api/state") as answer:
            assert answer.status == 405


async def test_files_are_asked_again_only_if_they_changed(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        async with http.get(page.url) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            tag = answer.headers["ETag"]
        async with http.get(page.url, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304


async def test_the_state_has_racks_owners_and_gangs(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        state = await state_of(http, page)
    names = [box[0] for _, boxes in state["layout"]["groups"] for box in boxes]
    assert names == ["hgx-1", "hgx-2", "hgx-3", "mesh-1", "pair-1", "pair-2"]
    owners = {int(number): key.split("/")[2] for number, key in state["owners"].items()}
    pretrain = next(number for number, name in owners.items() if name == "pretrain")
    assert sum(cell == pretrain for cell in state["cells"]) == 16
    embed = next(number for number, name in owners.items() if name == "embed")
    assert sum(cell == embed + 1 for cell in state["cells"]) == 4, "reserved"
    waiting = [gang["name"] for gang in state["gangs"] if gang["order"][0] == 0]
    assert waiting[0] == "rlhf"
    assert state["totals"]["gpus"] == len(state["cells"]) == 48


async def test_a_gang_has_its_place_links_and_timeline(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        key = scene.key("ring-of-four")
        async with http.get(page.url + "api/gang", params={"key": key}) as answer:
            shown = await answer.json()
        async with http.get(page.url + "api/gang", params={"key": "no/such/gang"}) as answer:
            assert answer.status == 404
    (node,) = shown["nodes"]
    assert (len(node["links"]), node["links"][0][0], node["ring"]["weakest"] > 0) == (4, "X", True)
    assert [step["phase"] for step in shown["timeline"]][-1] == "running"
    assert [pod["reserved"] for pod in shown["pods"]] == [False] * 4


async def test_a_refused_gang_says_why_and_what_helps(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        key = scene.key("rlhf")
        async with http.get(page.url + "api/gang", params={"key": key}) as answer:
            shown = await answer.json()
    assert shown["gang"]["phase"] == "unplaceable"
    assert all(cause["says"] and cause["helps"] for cause in shown["gang"]["causes"])
    assert (shown["nodes"], shown["plan"], shown["without_place"]) == ([], None, 3)


async def test_changes_come_as_cells_and_a_reader_goes_on_where_it_was_cut_off(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    async with serving(scene) as (page, _):
        state = await state_of(http, page)
        async with http.get(page.url + "api/events", headers={"Last-Event-ID": state["id"]}) as stream:
            scene.submit(Ask("new", "first", 1, 1))
            (*_, (_, first_id, first)) = await until_cells(stream)
        number = next(int(number) for number, key in first["owners"].items() if "/first" in key)
        ((index, owner),) = first["cells"]
        assert (owner, state["cells"][index]) == (number + 1, 0)
        scene.bind("first")
        # Another reader is connected, so that the change is in the log before the first one comes back.
        async with http.get(page.url + "api/events", headers={"Last-Event-ID": first_id}) as second_stream:
            events = await until_cells(second_stream)
        async with http.get(page.url + "api/events", headers={"Last-Event-ID": first_id}) as stream:
            assert [await next_event(stream) for _ in events] == events
        assert events[-1][2]["cells"] == [[index, number]]


async def test_a_gang_that_goes_leaves_the_list_and_its_number(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    async with serving(scene) as (page, _):
        state = await state_of(http, page)
        async with http.get(page.url + "api/events", headers={"Last-Event-ID": state["id"]}) as stream:
            scene.delete(*(uid for uid in list(scene.pods) if uid.startswith("llm/pretrain")))
            free_numbers: list[int] = []
            gangs_left: list[str] = []
            while not (free_numbers and gangs_left):
                _, _, change = await next_event(stream)
                free_numbers += change.get("gone", [])
                gangs_left += change.get("left", [])
        assert state["owners"][str(free_numbers[0])].startswith("llm/")
        assert free_numbers[0] >= FIRST_GANG
        assert gangs_left[0].startswith("llm/annotations/pretrain")


@pytest.mark.parametrize("id_", ["", "another-7"])
async def test_a_reader_that_missed_too_much_begins_anew(
    scene: Scene, http: aiohttp.ClientSession, id_: str
) -> None:
    async with (
        serving(scene) as (page, _),
        http.get(page.url + "api/events", headers={"Last-Event-ID": id_}) as stream,
    ):
        assert (await next_event(stream))[0] == "reset"
        assert await stream.content.read() == b""


async def test_another_layout_has_readers_begin_anew(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        state = await state_of(http, page)
        async with http.get(page.url + "api/events", headers={"Last-Event-ID": state["id"]}) as stream:
            first = scene.snapshot().nodes["hgx-1"].node
            labels = {**first.labels, "topology.kubernetes.io/rack": "rack-9"}
            scene.change(type(first)(**{**_fields(first), "labels": labels}))
            while (await next_event(stream))[0] != "reset":
                pass
        groups = (await state_of(http, page))["layout"]["groups"]
        assert [path for path, _ in groups] == [["rack-1"], ["rack-2"], ["rack-9"]]


async def test_a_reader_that_does_not_read_is_dropped(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene, limits=BrowserLimits(send_s=0.05)) as (page, board):
        state = await state_of(http, page)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", int(page.url.rstrip("/").rpartition(":")[2])))
            request = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {state['id']}\r\n\r\n"
            await loop.sock_sendall(slow, request.encode())
            async with asyncio.timeout(HANG_S):
                await until(lambda: page.clients == 1)
                while not page._server.dropped:
                    board._publish(b'{"left": ["' + b"x" * 400_000 + b'"]}')
                    await asyncio.sleep(0.01)
                await until(lambda: page.clients == 0)
        assert board.log._bytes <= 4 << 20


async def test_the_number_of_readers_is_bounded(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene, limits=BrowserLimits(clients=1)) as (page, _):
        state = await state_of(http, page)
        headers = {"Last-Event-ID": state["id"]}
        async with http.get(page.url + "api/events", headers=headers) as stream:
            assert stream.status == 200
            async with http.get(page.url + "api/events", headers=headers) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


HOSTS = {
    "localhost:8081": 200,
    "127.0.0.1": 200,
    "127.8.9.1:80": 200,
    "[::1]:8081": 200,
    "LOCALHOST": 200,
    "evil.example": 421,
    "evil.example:8081": 421,
    "localhost.evil.example": 421,
    "10.0.0.1": 421,
    "127.0.0.1.evil.example:1": 421,
}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
async def test_a_site_that_gives_itself_our_address_learns_nothing(
    scene: Scene, http: aiohttp.ClientSession, host: str, status: int
) -> None:
    async with serving(scene) as (page, _):
        for path in ("", "api/state"):
            async with http.get(page.url + path, headers={"Host": host}) as answer:
                assert answer.status == status


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200)])
async def test_another_site_takes_no_place_of_a_reader(
    scene: Scene, http: aiohttp.ClientSession, site: str, status: int
) -> None:
    async with serving(scene) as (page, _):
        for path in ("api/state", "api/events"):
            async with http.get(page.url + path, headers={"Sec-Fetch-Site": site}) as answer:
                assert answer.status == status


TOKENS = {"good": 200, "stranger": 403, "bad": 401, None: 401}


@pytest.mark.parametrize(("token", "status"), TOKENS.items())
@pytest.mark.parametrize("path", ["api/state", "api/events", "api/gang?key=x", "api/gang"])
async def test_a_bad_token_learns_nothing(
    scene: Scene, http: aiohttp.ClientSession, path: str, token: str | None, status: int
) -> None:
    async with serving(scene, access=Access(Api().post)) as (page, _):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with http.get(page.url + path, headers=headers) as answer:
            expected = 404 if status == 200 and "gang" in path else status
            assert answer.status == expected
            if status != 200:
                body = await answer.text()
                assert "hgx" not in body
                assert "pretrain" not in body
                assert len(body) < 100
        async with http.get(page.url) as answer:
            assert answer.status == 200, "the files say nothing of the cluster"


async def test_an_api_server_that_is_away_closes_the_page(scene: Scene, http: aiohttp.ClientSession) -> None:
    api = Api()
    api.said = b""
    async with (
        serving(scene, access=Access(api.post)) as (page, _),
        http.get(page.url + "api/state", headers={"Authorization": "Bearer good"}) as answer,
    ):
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_nothing_is_looked_at_while_no_browser_is_connected(scene: Scene) -> None:
    async with serving(scene) as (_, board):
        for _ in range(20):
            await asyncio.sleep(0)
        assert board.log.generation == 0


async def test_a_defect_of_the_page_does_not_end_the_service(
    scene: Scene, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "AFTER_DEFECT_S", 0.0)
    with capture_logs():  # a traceback for people has the whole cluster in it
        await _goes_on_after_a_defect(scene, http)


async def _goes_on_after_a_defect(scene: Scene, http: aiohttp.ClientSession) -> None:
    async with serving(scene) as (page, _):
        state = await state_of(http, page)
        real_taken = scene.gangs.gpus_of_pods
        looked = 0

        def fails(nodes: Any) -> Any:
            nonlocal looked
            looked += 1
            raise RuntimeError("a defect")

        scene.gangs.gpus_of_pods = fails  # type: ignore[method-assign]
        async with http.get(page.url + "api/events", headers={"Last-Event-ID": state["id"]}) as stream:
            await until(lambda: looked >= 3)
            scene.gangs.gpus_of_pods = real_taken  # type: ignore[method-assign]
            scene.submit(Ask("new", "first", 1, 1))
            assert (await until_cells(stream))[-1][2]["owners"]


def _fields(facts: Any) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in type(facts).__slots__}
