"""Fixtures: the cluster under test for the whole session, and a scene of its own for every test."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.arena import Arena, open_arena
from e2e.audit import GRACE_S
from e2e.devices.fleet import COUNT
from e2e.scene import Scene
from e2e.story import tell
from local_cluster.stack import Stack

HERE = Path(__file__).parent
RIGHTS = HERE / "test_rights.py"
"""Last, since it judges what was asked of the API server in all tests before it."""

SENT = "members"
"""What a process of pytest-xdist sends its count as."""
SHORT = 24
"""Gangs of a stream in `make test`. `make upgrade` asks for more, and for what takes minutes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        default="local",
        metavar="local|kind|kubeconfig:PATH",
        help="end-to-end tests: boot a cluster (default), or use one with Muster: of `make kind-up`, or any",
    )
    parser.addoption(
        "--gangs",
        default=str(SHORT),
        metavar="COUNT",
        help="test_upgrades.py: gangs of the stream; if not 24, leases hold as long as in production, and "
        "test_rotation.py takes seven minutes",
    )
    parser.addoption(
        "--from",
        default="",
        metavar="REVISION",
        help="test_upgrades.py: the release that is upgraded from, by both mixtures, and gone back to",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "grace(seconds): how long a gang may be half bound in this test, by e2e.pace"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "arena" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: item.path == RIGHTS)


@pytest.fixture(scope="session")
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """The cluster under test, booted once."""
    with open_arena(str(request.config.getoption("--cluster")), tmp_path_factory.mktemp("e2e")) as opened:
        yield opened


@pytest.fixture
def scene(request: pytest.FixtureRequest, arena: Arena) -> Iterator[Scene]:
    """A namespace, nodes and a record of one's own; Muster is up. The mark `grace` is for faults that may
    leave a gang half bound for longer than usual, in seconds."""
    marker = request.node.get_closest_marker("grace")
    grace_s = float(marker.args[0]) if marker else GRACE_S
    _bring_back(arena)
    with Scene(arena.client, fenced=arena.fenced, grace_s=grace_s) as new_scene:
        yield new_scene


@pytest.fixture
def stack(arena: Arena, scene: Scene) -> Iterator[Stack]:
    """Muster's processes, to kill and start; they are brought back before the scene is cleared."""
    if arena.stack is None:
        pytest.skip("needs Muster's processes, which are out of reach on a cluster of somebody else's")
    yield arena.stack
    _bring_back(arena)


def _bring_back(arena: Arena) -> None:
    """What a test killed is no concern of the next one."""
    if arena.stack is not None:
        arena.stack.restore()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Every test ends with the auditor's judgement, as a part of the test."""
    outcome = yield
    scene = pyfuncitem.funcargs.get("scene")
    if isinstance(scene, Scene):
        scene.audit()
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A failure tells what the API server and Muster know of it, before the scene is cleared."""
    report = yield
    funcargs = getattr(item, "funcargs", {})
    scene, arena = funcargs.get("scene"), funcargs.get("arena")
    if report.failed and isinstance(arena, Arena):
        sections = tell(arena, scene if isinstance(scene, Scene) else None)
        report.sections.extend(sections)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist sends what it has counted: its own output goes nowhere."""
    if (sent := getattr(session.config, "workeroutput", None)) is not None:
        sent[SENT] = COUNT.as_sent()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a process of pytest-xdist has counted; one that crashed has sent nothing."""
    COUNT.add((getattr(node, "workeroutput", None) or {}).get(SENT, {}))


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run with real nodes: how many members were compared with their plan."""
    if COUNT.checked and not hasattr(config, "workeroutput"):
        print(COUNT)
