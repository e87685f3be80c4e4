"""Decide from the cluster without a service: the same answers by the same engine, for one moment.

Facts that only a service has are missing: phases, reservations, and refusals of in-tree plugins.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from muster.adapters.asking.service import NoAnswer
from muster.adapters.files.decide import GangOutcome, Outcomes, OutcomeStatus, decide
from muster.adapters.files.reading.cluster import cluster_of
from muster.adapters.files.reading.sources import BadInput, Document
from muster.adapters.files.run import planner, read_cluster
from muster.adapters.kube.client import KubeError
from muster.adapters.kube.decode import Undecodable
from muster.adapters.status import nodes_of
from muster.dialects.keys import GPU_PRODUCT
from muster.dialects.settings import DialectSettings
from muster.domain.decision import Unplaceable
from muster.domain.levels import domains_by_scope
from muster.domain.pod import Pod
from muster.domain.reasons import cause_views
from muster.gangs.messages.settings import GangSettings
from muster.gangs.record.gang import Gang, view
from muster.gangs.reporting.places import Owner

TIME_LIMIT_S = 10.0
"""Time limit for each gang, in seconds."""

_PHASES = {OutcomeStatus.WAITING: "collecting", OutcomeStatus.PLACED: "placeable"}


def decide_cluster(kubeconfig: Path | None, context: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answers of a service at /gangs and at /nodes.

    Raises:
        NoAnswer: The cluster can't be read.
    """
    settings = DialectSettings()
    try:
        items = read_cluster(kubeconfig, context).items
        documents = [
            Document("the cluster", f"object {number}", item) for number, item in enumerate(items, start=1)
        ]
        cluster = cluster_of(documents, settings)
    except (KubeError, Undecodable) as problem:
        raise NoAnswer(str(problem)) from None
    except BadInput as problem:
        raise NoAnswer("\n".join(problem.lines)) from None
    outcome = decide(cluster, planner(TIME_LIMIT_S), time.perf_counter)
    snapshot = outcome.before
    nodes_with_gpus = [state.node for state in snapshot.nodes.values()]
    domains = domains_by_scope(nodes_with_gpus, snapshot.levels, snapshot.naming)
    nodes = nodes_of(snapshot, GPU_PRODUCT, domains, owners_by_node(cluster.pods))
    return gangs_of(outcome), msgspec.to_builtins(nodes)


def owners_by_node(pods: Iterable[Pod]) -> dict[str, tuple[Owner, ...]]:
    """Return node → gangs that have GPUs there, by the bound pods."""
    gpus_by_node: dict[str, Counter[tuple[str, str]]] = {}
    for pod in pods:
        if pod.node and pod.gpus and not pod.finished:
            gang = (pod.namespace, pod.claim.name) if pod.claim is not None else ("", "")
            gpus_by_node.setdefault(pod.node, Counter())[gang] += pod.gpus
    return {
        node: tuple(Owner(*gang, gpus) for gang, gpus in sorted(gpus_by_gang.items()))
        for node, gpus_by_gang in gpus_by_node.items()
    }


def gangs_of(decided_gangs: Outcomes) -> dict[str, Any]:
    """Return pending gangs as a service shows them."""
    return {"ready": True, "notes": [], "gangs": [_gang(outcome) for outcome in decided_gangs.outcomes]}


def _gang(outcome: GangOutcome) -> dict[str, Any]:
    group, decision = outcome.group, outcome.decision
    relaxations = decision.relaxations if isinstance(decision, Unplaceable) else ()
    gang = Gang(group.gang.key, (group.gang.namespace, group.gang.dialect, group.gang.name, ""), group)
    # The settings of the service are not known here.
    queue_order = gang.queue_order(is_covered=False, optional_delay_s=GangSettings().extras_s)
    return {
        **msgspec.to_builtins(view(gang, queue_order)),
        "phase": _PHASES.get(outcome.status, outcome.status.value),
        "reason": outcome.message,
        "causes": msgspec.to_builtins(cause_views(outcome.causes)),
        "helps": list(map(str, relaxations)),
        "pods": sorted(pod.name for pod in group.members),
    }
