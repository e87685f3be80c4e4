"""`make scrape-bench` scrapes what it says, and answers each scrape anew."""

from __future__ import annotations

from benchmarks import scrape
from benchmarks.page.scenes import six
from muster.adapters import web


async def test_each_kind_of_scrape_is_measured() -> None:
    scene, at_once_before = six(), web.ANSWERS_WITHOUT_PAUSE
    before = len(scene.gangs.keys())
    figures = await scrape.measure(scene, 3)
    assert at_once_before == web.ANSWERS_WITHOUT_PAUSE
    assert (figures["nodes"], figures["gangs"]) == (6, before)
    assert {"first", "nothing_changed", "a_pod_came", "a_node_changed"} <= figures.keys()
    assert sum(uid.startswith("scraped") for uid in scene.pods) == 3
    assert (
        sum(state.node.labels.get("scraped") == name for name, state in scene.snapshot().nodes.items()) == 3
    )
