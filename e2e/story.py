"""What a failed test has to tell: pods and their events, the gangs as the service sees them, log tails."""

from __future__ import annotations

from e2e.arena import Arena
from e2e.facts import PodFacts
from e2e.record import PODS
from e2e.scene import Scene
from local_cluster.api import ApiError, ApiUnreachable

LOG_LINES = 60
LONGEST = 6000


def tell(arena: Arena, scene: Scene | None) -> list[tuple[str, str]]:
    """(title, text) for each section of the report. Never raises: the failure itself comes first."""
    sections = []
    if scene is not None:
        sections.append((f"pods of {scene.name}", _pods(scene)))
        sections.append((f"events of {scene.name}", _events(scene)))
        sections.append(("what the auditor finds", _findings(scene)))
    if arena.stack is not None:
        try:
            gangs = arena.stack.service_get("/gangs")[:LONGEST]
        except OSError as problem:
            gangs = f"the service does not answer: {problem}"
        sections.append(("gangs, as the service sees them", gangs))
        sections.append(("logs", arena.stack.logs(LOG_LINES)))
    return sections


def _pods(scene: Scene) -> str:
    lines = [
        f"{name}: {pod.phase} on {pod.node or 'no node'}, GPUs {pod.allocation}; {scene.condition(name)}"
        for name, pod in sorted(scene.pods().items())
    ]
    binds = [
        f"  {pod.name} → {pod.node} {pod.allocation}"
        for pod in (PodFacts.of(c.body) for c in scene.record.changes() if c.kind == PODS)
        if pod.node and pod.name.startswith(f"{scene.name}/")
    ]
    return "\n".join([*lines, "seen bound, in order:", *dict.fromkeys(binds)])


def _findings(scene: Scene) -> str:
    try:
        return "\n".join(map(str, scene.findings())) or "nothing"
    except (ApiError, ApiUnreachable) as problem:
        return f"the API server does not answer: {problem}"


def _events(scene: Scene) -> str:
    return "\n".join(
        f"{event.pod}: {event.reason} ×{event.count}: {event.message}" for event in scene.all_events()
    )
