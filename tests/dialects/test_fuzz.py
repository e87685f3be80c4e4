"""Tests that read() never raises, with any JSON object, whether an API server accepts it or not."""

from __future__ import annotations

import json
import operator
from itertools import pairwise
from typing import Any

import msgspec
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.dialects import policies
from muster.dialects.gangs.own import KEYS, MAX_LEVELS, MAX_LISTED
from muster.dialects.nodes import configmaps, nodes
from muster.dialects.nodes.configmaps import PolicyText
from muster.dialects.objects import ConfigMapObject, NodeObject, PodObject
from muster.dialects.pods import pods
from muster.dialects.pods.peers import MAX_TERMS
from muster.domain.allocation import MAX_GPUS, RESERVED_KEYS
from muster.domain.request import Scope
from tests.dialects.objects import config_map

TEXT = st.text(max_size=12)
NUMBER = st.sampled_from(["0", "1", "2", "8", "-1", "1.5", "500m", "two", "", "1e3", "9" * 40, "1Gi", "1e-9"])
LABEL = st.sampled_from(
    [
        "gpu-topology",
        "gpu-topology-replica",
        "ack.node.gpu.schedule",
        "ack.node.gpu.placement",
        "aliyun.com/gpu-count",
        "nodename",
        "gpu.topology/nvlink-domain",
        "gpu.topology/nvlink-domain-size",
        "nvidia.com/gpu.clique",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.product",
        "nvidia.com/nvlink.version",
        "nvidia.com/nvswitch.present",
        "gpu.topology/group",
    ]
)
VALUE = TEXT | NUMBER | st.sampled_from(["true", "H100", "A100", "topology", "share", "spread", "train"])
RESOURCE = st.sampled_from(
    [
        "cpu",
        "memory",
        "pods",
        "nvidia.com/gpu",
        "aliyun.com/gpu",
        "amd.com/gpu",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "nvidia.com/mig-1g",
    ]
)
QUANTITY = NUMBER | TEXT | st.integers() | st.floats()
AMOUNTS = st.none() | st.dictionaries(RESOURCE, QUANTITY, max_size=4)
MATRIX = TEXT | st.dictionaries(
    st.builds(
        "GPU_{}_{}_{}".format,
        st.sampled_from(["NV1", "SYS", "N-A", "_"]),
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    st.sampled_from(["Single NVLink", "Cross CPU socket", "?"]) | st.integers() | st.none(),
    max_size=8,
).map(lambda pairs: msgspec.json.encode(pairs).decode())
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from(["NV2", "SYS", "X", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | NUMBER, inner, max_size=3),
    max_leaves=10,
)
JSON = ANYTHING.map(json.dumps)
SCOPES = st.sampled_from([*Scope, "example.com/row", "-", "", " rack "])
LISTED = st.lists(SCOPES | NUMBER | st.builds("{}={}".format, SCOPES, NUMBER), max_size=9).map(",".join)
OWN_VALUES = LISTED | VALUE | st.builds(operator.mul, TEXT, st.integers(0, 200))
ANNOTATIONS = st.builds(
    operator.or_,
    st.dictionaries(
        st.sampled_from(
            [
                *RESERVED_KEYS,
                "GPU_TOPOLOGY",
                "gpu.topology/gpu-mem",
                "batch.kubernetes.io/job-completion-index",
            ]
        ),
        MATRIX
        | NUMBER
        | JSON
        | st.sampled_from(
            [
                '{"version":1,"gpus":[0,1]}',
                '{"version":1,"gpus":[{}]}',
                '{"version":1,"gpus":[0],"gpu_mem":{"0":2}}',
                '{"version":1,"gpus":[0],"gpu_mem":[2]}',
                '{"0":{"0":1},"1":{"0":1}}',
                "0,1",
                "-1",
            ]
        ),
        max_size=3,
    ),
    st.dictionaries(st.sampled_from(KEYS) | TEXT.map("gpu.topology/{}".format), OWN_VALUES, max_size=6),
)
CONTAINER = st.fixed_dictionaries(
    {"name": TEXT, "resources": st.fixed_dictionaries({"limits": AMOUNTS, "requests": AMOUNTS})},
    optional={
        "restartPolicy": st.sampled_from(["Always", ""]),
        "ports": st.lists(
            st.fixed_dictionaries(
                {"containerPort": st.integers(), "hostPort": st.integers(), "hostIP": TEXT, "protocol": TEXT}
            ),
            max_size=2,
        ),
    },
)
REQUIREMENT = st.fixed_dictionaries(
    {"key": TEXT, "operator": TEXT, "values": st.none() | st.lists(TEXT, max_size=2)}
)
TERMS = st.none() | st.lists(
    st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(REQUIREMENT), "matchFields": st.none()}),
    max_size=2,
)
SELECTOR = st.none() | st.fixed_dictionaries(
    {}, optional={"matchLabels": st.dictionaries(TEXT, TEXT), "matchExpressions": st.lists(REQUIREMENT)}
)
PEERS = st.fixed_dictionaries(
    {
        "requiredDuringSchedulingIgnoredDuringExecution": st.none()
        | st.lists(
            st.fixed_dictionaries(
                {"topologyKey": TEXT, "labelSelector": SELECTOR, "namespaceSelector": SELECTOR},
                optional={"namespaces": st.lists(TEXT), "matchLabelKeys": st.lists(TEXT)},
            ),
            max_size=2,
        )
    }
)
SPREAD = st.fixed_dictionaries(
    {
        "topologyKey": TEXT,
        "maxSkew": st.integers(),
        "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway", ""]),
        "labelSelector": SELECTOR,
    },
    optional={
        "minDomains": st.integers(),
        "matchLabelKeys": st.lists(TEXT | LABEL),
        "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore", ""]),
        "nodeTaintsPolicy": TEXT,
    },
)
STATE = st.fixed_dictionaries(
    {
        "name": TEXT,
        "allocatedResources": AMOUNTS,
        "resources": st.none() | st.fixed_dictionaries({"requests": AMOUNTS}),
    }
)
STATUS = st.fixed_dictionaries(
    {},
    optional={
        "conditions": st.lists(
            st.fixed_dictionaries(
                {"type": st.just("PodResizePending"), "reason": TEXT | st.just("Infeasible")}
            )
        ),
        "containerStatuses": st.lists(STATE, max_size=2),
        "initContainerStatuses": st.lists(STATE, max_size=2),
        "allocatedResources": AMOUNTS,
        "resources": st.none() | st.fixed_dictionaries({"requests": AMOUNTS}),
    },
)
METADATA = st.fixed_dictionaries(
    {
        "name": TEXT,
        "namespace": TEXT,
        "uid": TEXT,
        "labels": st.none() | st.dictionaries(LABEL, VALUE, max_size=4),
        "annotations": st.none() | ANNOTATIONS,
        "creationTimestamp": st.none()
        | TEXT
        | st.sampled_from(["2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59"]),
    }
)
POD = st.fixed_dictionaries(
    {
        "metadata": METADATA,
        "spec": st.fixed_dictionaries(
            {
                "schedulerName": st.sampled_from(["muster", "other", ""]),
                "containers": st.lists(CONTAINER, max_size=3),
            },
            optional={
                "nodeName": TEXT,
                "initContainers": st.lists(CONTAINER, max_size=2),
                "overhead": AMOUNTS,
                "affinity": st.builds(
                    lambda terms, near, away: {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                        },
                        "podAffinity": near,
                        "podAntiAffinity": away,
                    },
                    TERMS,
                    PEERS,
                    PEERS,
                ),
                "topologySpreadConstraints": st.lists(SPREAD, max_size=2),
                "hostNetwork": st.booleans(),
                "volumes": st.lists(
                    st.fixed_dictionaries(
                        {"name": TEXT},
                        optional={
                            "persistentVolumeClaim": st.builds(lambda name: {"claimName": name}, TEXT),
                            "ephemeral": st.just({}),
                        },
                    ),
                    max_size=2,
                ),
                "resourceClaims": st.lists(st.builds(lambda name: {"name": name}, TEXT), max_size=2),
                "schedulingGroup": st.just({"podGroupName": None}),
            },
        ),
        "status": STATUS,
    }
)
NODE = st.fixed_dictionaries(
    {"metadata": METADATA, "status": st.fixed_dictionaries({"allocatable": AMOUNTS, "conditions": st.none()})}
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(POD)
def test_any_pod_is_read(raw: dict[str, Any]) -> None:
    pod = pods.read(msgspec.convert(raw, PodObject))
    assert pod.gpus >= 0
    assert pod.claim is not None or pod.causes == ()
    hash((pod.claim, pod.rules, pod.causes, pod.labels, pod.peers))
    assert all(
        len(terms) <= MAX_TERMS for terms in (pod.peers.affinity, pod.peers.anti_affinity, pod.peers.spread)
    )
    assert all(port.port > 0 for port in pod.peers.host_ports)
    assert pod.resources.cpu_milli >= 0
    assert pod.rank is None or pod.rank >= 0
    if pod.claim is not None:
        topology_request = pod.claim.topology_request
        sizes = [segment.size for segment in topology_request.segments]
        assert len(sizes) <= MAX_LEVELS
        assert all(size > 0 for size in sizes)
        assert not any(wide % narrow for wide, narrow in pairwise(sizes))
        assert len(topology_request.preferred_scopes) <= MAX_LISTED
        assert all(most.members > 0 for most in topology_request.per_scope)
    if pod.slice is not None:
        assert pod.gpus == 0
        assert pod.slice.units > 0
        assert 0 < pod.slice.gpus <= MAX_GPUS
        assert all(0 <= units <= pod.slice.units for _, units in pod.container_gpus)
    gpus = pod.slice.gpus if pod.slice else pod.gpus
    if pod.allocation is not None:
        assert pod.allocation.bit_count() == gpus
    usage = pod.usage
    if usage is not None:
        assert (usage.gpus == 0) or (usage.unindexed_gpus == 0)
        assert usage.gpus.bit_count() + usage.unindexed_gpus == gpus


MATRICES = st.integers(0, 4).flatmap(
    lambda n: st.lists(
        st.lists(st.sampled_from(["X", "", "NV2", "SYS", "Two NVLinks", "NV99"]), min_size=n, max_size=n),
        min_size=n,
        max_size=n,
    )
)
SPEEDS = st.lists(st.lists(st.floats() | st.integers() | st.booleans(), max_size=3), max_size=3)
CONFIG_MAP = st.builds(
    config_map,
    st.sampled_from(["unhealthy-gpu-n", "n-topology", "kai-scheduler-config", "x"]),
    st.none()
    | st.dictionaries(
        st.sampled_from(["gpus", "devices", "linkType", "bandwidth", "config.yaml"]),
        JSON | MATRICES.map(json.dumps) | SPEEDS.map(json.dumps) | TEXT | NUMBER | st.just("0,2"),
        max_size=4,
    ),
    st.none() | st.just({"ack.node.gpu.schedule": "topology", "nodename": "n"}),
    st.sampled_from(["kube-system", "muster-system"]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NODE, st.lists(CONFIG_MAP, max_size=3))
def test_any_node_is_read_with_any_config_maps(raw: dict[str, Any], maps: list[ConfigMapObject]) -> None:
    facts = [fact for fact in map(configmaps.read, maps) if fact and not isinstance(fact, PolicyText)]
    node = nodes.read(msgspec.convert(raw, NodeObject), facts=facts)
    count = node.topology.gpu_count
    assert 0 <= count <= MAX_GPUS
    assert len(node.gpu_memory) in (0, count)
    assert all(units >= 0 for units in node.gpu_memory)
    assert node.unhealthy >> count == 0
    for i in range(count):
        for j in range(count):
            assert node.topology.link(i, j) == node.topology.link(j, i)
        assert node.topology.link(i, i) is None
    assert all(isinstance(problem, str) and problem for problem in node.problems)


FIELD = st.sampled_from(
    ["name", "weight", "topology", "strategy", "label", "enabled", "policies", "levels", "preset"]
)
WORD = st.sampled_from(["nvlink", "numa", "pack", "spread", "true", "rack", "node", "gke", "x/y", "5"])
POLICY = st.recursive(
    WORD | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELD | TEXT, inner, max_size=4),
    max_leaves=12,
)
LISTED_POLICY = st.fixed_dictionaries({"name": WORD, "weight": WORD, "topology": WORD, "strategy": WORD})
LEVEL = st.fixed_dictionaries({"name": WORD, "label": WORD})
SECTION = POLICY | st.fixed_dictionaries(
    {},
    optional={
        "policies": st.lists(LISTED_POLICY),
        "levels": st.lists(LEVEL),
        "enabled": WORD,
        "preset": WORD,
    },
)
YAML = (
    st.text(max_size=200)
    | st.text("[]{}:-&*!|>'\"#%@,? \nab", max_size=60)
    | st.builds(lambda section: yaml.safe_dump({"topologyAwareScheduling": section}), SECTION)
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(YAML)
def test_any_policies_are_read_or_refused(text: str) -> None:
    result, problems = policies.read(text)
    assert (result is None) == bool(problems)
    assert all(problems)
    if result is not None:
        assert len(result.policies) <= policies.MAX_POLICIES
        scopes = [level.scope for level in result.levels]
        assert len(set(scopes)) == len(scopes)
        assert {"zone", "rack"} <= set(scopes)
        assert not set(scopes) & set(policies.BUILT_IN)
        assert [policy.name for policy in result.policies] == list({p.name: p for p in result.policies})
