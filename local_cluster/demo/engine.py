"""What the demo shows while the first build runs: the engine on files, as `muster place` does."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

from local_cluster.demo.manifests import EXAMPLES
from local_cluster.demo.show import Show
from muster.adapters.files.run import place_files
from muster.dialects.settings import DialectSettings

CLUSTER = "clusters/documents.yaml"


@dataclass(frozen=True, slots=True)
class Scene:
    """An example, and what to look at in its answer."""

    title: str
    example: str
    story: str


SCENES = (
    Scene(
        "Four pods on a node that is partly used",
        "features/four-on-a-busy-node.yaml",
        "The pods exchange data in a ring. GPUs 0, 3 and 6 are taken, and one choice of four has NVLink all "
        "the way round.",
    ),
    Scene(
        "A PyTorchJob: two pods, one GPU each",
        "ack/pytorchjob.yaml",
        "Master and worker get two GPUs that two NVLinks join.",
    ),
    Scene(
        "Two whole nodes in one rack",
        "kai-recipe/multi-node-tas.yaml",
        "A PodGroup asks for one rack.",
    ),
    Scene(
        "A gang that does not fit",
        "features/too-wide-for-a-rack.yaml",
        "Three whole nodes in one rack, where no rack has three. All its pods wait, and the reason says what "
        "would help.",
    ),
)


def tell(show: Show, progress: Callable[[], str], between: Callable[[], None]) -> None:
    """Show each scene, and after it how far the build is. `between` is called before each."""
    show.part("While the programs are built: the engine on files, without a cluster (muster place)")
    for scene in SCENES:
        between()
        show.scene(scene.title, f"examples/{scene.example}", scene.story)
        show.lines(answer(scene))
        show.gap()
        show.note(progress())


def answer(scene: Scene) -> str:
    """Return what `muster place` prints for the scene."""
    printed = io.StringIO()
    place_files(
        [str(EXAMPLES / CLUSTER), str(EXAMPLES / scene.example)],
        "table",
        time_limit_s=None,
        settings=DialectSettings(),
        stdin=io.BytesIO(),
        stdout=printed,
        stderr=printed,
    )
    return printed.getvalue()
