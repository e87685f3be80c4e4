"""Small clusters and a pending pod that asks for all sorts of things about other pods, drawn at random.

`python -m tests.gangs.drawn_cases --seed 1` writes CASES anew, without answers. Then
`UPDATE=1 go test ./internal/pluginanswers` in shim/ adds what kube-scheduler's own plugins answer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.gangs.oracle import allowed

Object = dict[str, Any]

CASES = Path(__file__).parent / "data" / "plugin-answers.jsonl"
NAMESPACES = ("ns", "m", "k")
KEYS = ("kubernetes.io/hostname", "zone", "rack")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WANTED = {"InterPodAffinity": 40, "PodTopologySpread": 40, "NodePorts": 10}
"""Plugin → number of cases in which it refuses some nodes and not all."""
MAX_LENGTH = 3000
"""Characters of a case."""


class Draw:
    """Draws cases; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def case(self) -> Object:
        """Return nodes, pods, namespaces and the pending pod, as the API has them."""
        count = self._random.randint(2, 6)
        names = [f"n{number}" for number in range(count)]
        pods = self._random.choice([0, 1, 3, 8, 14])
        return {
            "Nodes": [self._node(name) for name in names],
            "Pods": [self._pod(f"p{number}", self._random.choice(names)) for number in range(pods)],
            "Namespaces": [self._namespace(name) for name in NAMESPACES],
            "Pod": self._pod("new"),
        }

    def _is(self, chance: float) -> bool:
        return self._random.random() < chance

    def _labels(self) -> dict[str, str]:
        drawn = {"app": ("web", "db", 0.8), "tier": ("a", "b", 0.5), "rev": ("1", "2", 0.3)}
        return {
            key: self._random.choice([first, second])
            for key, (first, second, chance) in drawn.items()
            if self._is(chance)
        }

    def _selector(self) -> Object | None:
        if self._is(0.05):
            return None
        if self._is(0.07):
            return {}
        selector: Object = {"matchLabels": self._labels()} if self._is(0.7) else {}
        if self._is(0.4) or not selector.get("matchLabels"):
            operator = self._random.choice(["In", "NotIn", "Exists", "DoesNotExist"])
            expression: Object = {"key": self._random.choice(["app", "tier", "rev"]), "operator": operator}
            if operator.endswith("In"):
                expression["values"] = self._random.sample(["web", "db", "a", "b", "1"], 2)
            selector["matchExpressions"] = [expression]
        return selector

    def _term(self) -> Object:
        term: Object = {"topologyKey": self._random.choice(KEYS)}
        selector = self._selector()
        if selector is not None:
            term["labelSelector"] = selector
        if self._is(0.3):
            term["namespaces"] = self._random.sample(NAMESPACES, 2)
        if self._is(0.25):
            no_team = {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}
            by_label: list[Object] = [{}, {"matchLabels": {"team": "t"}}, no_team]
            term["namespaceSelector"] = self._random.choice(by_label)
        return term

    def _terms(self) -> Object:
        return {REQUIRED: [self._term() for _ in range(self._random.randint(1, 2))]}

    def _constraint(self, key: str) -> Object:
        constraint: Object = {
            "topologyKey": key,
            "maxSkew": self._random.randint(1, 2),
            "whenUnsatisfiable": self._random.choice(["DoNotSchedule"] * 3 + ["ScheduleAnyway"]),
        }
        selector = self._selector()
        if selector is not None:
            constraint["labelSelector"] = selector
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and self._is(0.3):
            constraint["minDomains"] = self._random.randint(1, 4)
        for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self._is(0.3):
                constraint[field] = self._random.choice(["Honor", "Ignore"])
        if self._is(0.2):
            constraint["matchLabelKeys"] = ["rev"]
        return constraint

    def _ports(self) -> list[Object]:
        port: Object = {"containerPort": 80, "hostPort": self._random.choice([80, 81])}
        port["protocol"] = self._random.choice(["TCP", "UDP"])
        if self._is(0.5):
            port["hostIP"] = self._random.choice(["10.0.0.1", "10.0.0.2", "0.0.0.0"])
        return [port]

    def _pod(self, name: str, node: str = "") -> Object:
        container: Object = {"name": "main"}
        if self._is(0.3):
            container["ports"] = self._ports()
        spec: Object = {"containers": [container]}
        if self._is(0.2):
            spec["initContainers"] = [{"name": "init", "ports": self._ports()}]
            if self._is(0.5):
                spec["initContainers"][0]["restartPolicy"] = "Always"
        affinity = {"podAntiAffinity": self._terms()} if self._is(0.4) else {}
        if not node and self._is(0.5):
            affinity["podAffinity"] = self._terms()
        if affinity:
            spec["affinity"] = affinity
        meta: Object = {"name": name, "namespace": "ns", "uid": name, "labels": self._labels()}
        if node:
            spec["nodeName"] = node
            meta["namespace"] = self._random.choice(NAMESPACES)
            if self._is(0.15):
                meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}
        spec["schedulerName"] = "muster"
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        if self._is(0.6):
            keys = self._random.sample(KEYS, self._random.randint(1, 2))
            spec["topologySpreadConstraints"] = [self._constraint(key) for key in keys]
        if self._is(0.3):
            spec["nodeSelector"] = {"disk": "ssd"}
        if self._is(0.3):
            spec["tolerations"] = [{"key": "t", "operator": "Exists"}]
        return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}

    def _node(self, name: str) -> Object:
        labels = {"kubernetes.io/hostname": name, "zone": "xyz", "rack": "pq", "disk": "ssd"}
        for key, chance in (("zone", 0.9), ("rack", 0.7), ("disk", 0.6), ("kubernetes.io/hostname", 0.95)):
            if key in ("zone", "rack"):
                labels[key] = self._random.choice(labels[key])
            if not self._is(chance):
                del labels[key]
        body: Object = {"metadata": {"name": name, "labels": labels}}
        if self._is(0.3):
            effect = self._random.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"])
            body["spec"] = {"taints": [{"key": self._random.choice(["t", "u"]), "effect": effect}]}
        return body

    def _namespace(self, name: str) -> Object:
        return {"metadata": {"name": name, **({"labels": {"team": "t"}} if self._is(0.5) else {})}}


def chosen(seed: int) -> Iterator[Object]:
    """Yield short cases until enough of them have each plugin refuse some nodes and not all."""
    draw, counts = Draw(seed), Counter[str]()
    while any(counts[plugin] < count for plugin, count in WANTED.items()):
        case = draw.case()
        if len(json.dumps(case)) > MAX_LENGTH:
            continue
        open_nodes = allowed(case)
        plugins = [plugin for plugin, names in open_nodes.items() if 0 < len(names) < len(case["Nodes"])]
        if any(counts[plugin] < WANTED[plugin] for plugin in plugins):
            counts.update(plugins)
            yield case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    lines = (json.dumps(case, separators=(",", ":")) for case in chosen(parser.parse_args().seed))
    CASES.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
