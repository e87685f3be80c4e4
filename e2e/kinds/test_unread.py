"""Without the right to read jobs, as with the overlay of docs/kinds.md: pods start, and notes say why."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.kinds.jobs import Jobs
from e2e.kinds.test_operators import CASES
from e2e.scene import Scene
from local_cluster import stack_config
from local_cluster.stack import Stack
from tests.manifests.rendering import REPOSITORY, SCHEDULER_CONFIG, render

pytestmark = pytest.mark.usefixtures("one_node")

HEADING = "## The service's rights"


def patches() -> str:
    """Return the overlay's patches, from the docs."""
    _, _, section = (REPOSITORY / "docs" / "kinds.md").read_text().partition(HEADING)
    return section.partition("```yaml\n")[2].partition("```")[0]


def left_out(folder: Path) -> set[tuple[str, str]]:
    """Return kind and name of each object that the overlay lacks."""
    base = {"resources": [os.path.relpath(SCHEDULER_CONFIG, folder)]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(base) + patches())
    every, ours = (
        {(manifest["kind"], manifest["metadata"]["name"]) for manifest in render(path)}
        for path in (SCHEDULER_CONFIG, folder)
    )
    assert ours < every
    return every - ours


@pytest.fixture
def unread(stack: Stack, tmp_path: Path) -> Iterator[None]:
    """Take away what the overlay leaves out. Established watches go on, so the service starts again."""
    api = stack.cluster.api
    for kind, name in left_out(tmp_path):
        api.delete(f"{stack_config.RIGHTS[kind]}/{name}")
    try:
        stack.service.kill()
        stack.start_service()
        yield
    finally:
        stack_config.apply_rights(api)
        stack.service.kill()
        stack.start_service()


@pytest.mark.usefixtures("unread")
def test_pods_of_a_job_are_placed_one_by_one_and_a_note_says_why(
    scene: Scene, jobs: Jobs, stack: Stack
) -> None:
    jobs.operate(jobs.submit(CASES["PyTorchJob"].job))
    scene.until(lambda: len(scene.bound()) == 3, "all pods have a node")
    event = scene.event("TopologyNoGang", "x")
    assert "the service can't read pytorchjobs.kubeflow.org" in event.message
    notes = json.loads(stack.service_get("/gangs"))["notes"]
    (note,) = [note for note in notes if note.startswith("the service may not read ")]
    assert "scheduler-config/jobs grants the right" in note
