"""Muster is taken off kind under running pods, and put back. It comes last of the tests on kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import kind, objects
from e2e.scene import Scene


@pytest.fixture
def put_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Install Muster again, whatever became of the test."""
    if request.config.getoption("--cluster") != "kind":
        pytest.skip("needs the cluster of `make kind-up`: --cluster kind")
    yield
    kind.install()


def test_uninstalling_leaves_nothing_and_harms_no_pod(scene: Scene, put_back: None) -> None:
    scene.node(objects.node("a"))
    gang = objects.ack("g", 2)
    running = scene.create(*(objects.pod(f"w-{rank}", gang=gang) for rank in range(2)))
    scene.runs(running)
    before = scene.pods()
    kind.uninstall()
    assert kind.left() == []
    after = scene.pods()
    assert {name: after[name].uid for name in running} == {name: before[name].uid for name in running}
    assert all(after[name].phase == "Running" for name in running)
