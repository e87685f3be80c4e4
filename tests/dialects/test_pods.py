"""What pods say, dialect by dialect: claims, requests, and the causes of what is ill-formed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from muster.dialects.keys import SHARED_GPUS
from muster.dialects.pods.pods import gang_keys, read
from muster.dialects.reading import Reading, merge_readings
from muster.dialects.settings import DialectSettings
from muster.domain.causes.ill_formed import BadValue, DialectsDisagree, ForgedAllocation
from muster.domain.node import GPU_MEM, Resources
from muster.domain.pod import Batch, Controller, GangClaim
from muster.domain.request import NodeRules, SelectorTerm, Toleration
from muster.placement.explain.relaxations import SAY_MIN_MEMBER
from tests.dialects.objects import pod_object

GANG = {"gpu-topology": "train", "gpu-topology-replica": "2"}
GPU = {"nvidia.com/gpu": 1}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LONE = GangClaim("gputopology", "p", min_member=1, replicas=1, lone=True)
ACK = GangClaim("ack", "train", min_member=2, replicas=2)
OF_NODE = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n", "controller": True}]


@dataclass(frozen=True)
class Case:
    """A pod, the claim that is read, and the fields of its causes ("forged" for annotations)."""

    pod: dict[str, Any]
    claim: GangClaim | None = None
    causes: tuple[str, ...] = ()
    gpus: int = 0
    more: dict[str, Any] = field(default_factory=dict)


def replica(count: str) -> Case:
    return Case(
        {"labels": {**GANG, "gpu-topology-replica": count}, "limits": GPU},
        GangClaim("ack", "train"),
        ("gpu-topology-replica",),
        1,
    )


CASES = {
    "the document's worker": Case({"labels": GANG, "limits": {"aliyun.com/gpu": 1}}, ACK, gpus=1),
    "a member without GPUs": Case({"labels": GANG}, ACK),
    "replicas two": replica("two"),
    "replicas 0": replica("0"),
    "replicas -1": replica("-1"),
    "replicas 1.5": replica("1.5"),
    "replicas empty": replica(""),
    "replicas of thirty digits": replica("9" * 30),
    "replicas of another alphabet": replica("٢"),
    "no replicas": Case(
        {"labels": {"gpu-topology": "train"}, "limits": GPU},
        GangClaim("ack", "train"),
        ("gpu-topology-replica",),
        1,
    ),
    "only replicas": Case({"labels": {"gpu-topology-replica": "2"}}, LONE, ("gpu-topology",)),
    "an empty name": Case(
        {"labels": {"gpu-topology": "", "gpu-topology-replica": "x"}},
        LONE,
        ("gpu-topology", "gpu-topology-replica"),
    ),
    "a lone GPU pod": Case({"limits": {"aliyun.com/gpu": "2"}}, LONE, gpus=2),
    "a lone pod without GPUs": Case({}),
    "zero GPUs": Case({"limits": {"nvidia.com/gpu": 0}}),
    "a static pod, which a kubelet made in a namespace of others": Case(
        {
            "labels": GANG,
            "limits": GPU,
            "node": "n",
            "annotations": {"kubernetes.io/config.mirror": "4f2a"},
            "ownerReferences": OF_NODE,
        },
        gpus=1,
    ),
    "a pod of a node that no kubelet made": Case(
        {"labels": GANG, "limits": GPU, "node": "n", "ownerReferences": OF_NODE}, ACK, gpus=1
    ),
    "another scheduler's pod": Case(
        {"scheduler": "default-scheduler", "labels": GANG, "limits": GPU}, gpus=1
    ),
    "half a GPU": Case({"limits": {"nvidia.com/gpu": "500m"}}, LONE, ("main: nvidia.com/gpu",)),
    "a negative GPU": Case({"limits": {"nvidia.com/gpu": -1}}, LONE, ("main: nvidia.com/gpu",)),
    "no number of GPUs": Case({"limits": {"amd.com/gpu": "all"}}, LONE, ("main: amd.com/gpu",)),
    "far too many GPUs": Case({"limits": {"amd.com/gpu": "1e18"}}, LONE, ("main: amd.com/gpu",), 1 << 20),
    "bad cpu beside a GPU": Case({"limits": {"cpu": "lots", **GPU}}, LONE, ("main: cpu",), 1),
    "two kinds of GPU": Case({"limits": {"aliyun.com/gpu": 1, "nvidia.com/gpu": 2}}, LONE, ("resources",), 2),
    "a MIG device alone": Case({"limits": {"nvidia.com/mig-1g.5gb": 1}}),
    "a MIG device in a gang": Case({"labels": GANG, "limits": {"nvidia.com/mig-1g.5gb": 1}}, ACK),
    "a MIG device beside a GPU": Case({"limits": {"nvidia.com/mig-1g.5gb": 1, **GPU}}, LONE, gpus=1),
    "GPU memory in a gang": Case({"labels": GANG, "limits": {"aliyun.com/gpu-mem": 3}}, ACK),
    "GPU memory alone": Case({"limits": {"aliyun.com/gpu-mem": 3}}, LONE),
    "a resource claim in a gang": Case({"labels": GANG, "spec": {"resourceClaims": [{"name": "gpu"}]}}, ACK),
    "a resource claim alone": Case({"spec": {"resourceClaims": [{"name": "gpu"}]}}),
    "a resource claim beside whole GPUs": Case(
        {"limits": GPU, "spec": {"resourceClaims": [{"name": "gpu"}]}}, LONE, gpus=1
    ),
    "a scheduling group": Case(
        {"limits": GPU, "spec": {"schedulingGroup": {"podGroupName": "x"}}},
        GangClaim("PodGroup", "x", by_object=True),
        gpus=1,
    ),
    "coscheduling's label": Case(
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, GangClaim("coscheduling", "g", by_object=True)
    ),
    "the recipe's annotations beside GPUs": Case(
        {"limits": GPU, "annotations": {"scheduling.run.ai/pod-group": "g"}},
        GangClaim("kai", "g", by_object=True),
        (),
        1,
    ),
    "our annotations": Case(
        {"annotations": {"gpu.topology/group": "g", "gpu.topology/min-member": "2"}},
        GangClaim("annotations", "g", min_member=2),
    ),
    "a forged allocation": Case(
        {"limits": GPU, "annotations": {"gpu.topology/allocation": "{}", "ALIYUN_COM_GPU_GROUP": "0"}},
        LONE,
        ("forged gpu.topology/allocation", "forged ALIYUN_COM_GPU_GROUP"),
        1,
    ),
    "the allocation of a bound pod": Case(
        {"limits": GPU, "node": "n", "annotations": {"gpu.topology/allocation": "{}"}}, LONE, gpus=1
    ),
    "an ill-formed pod that is bound already": Case(
        {"labels": {**GANG, "gpu-topology-replica": "x"}, "node": "n"}, GangClaim("ack", "train")
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_a_pod_says(case: Case) -> None:
    pod = read(pod_object(**case.pod))
    assert pod.claim == case.claim
    problems = tuple(f"forged {c.key}" if isinstance(c, ForgedAllocation) else _field(c) for c in pod.causes)
    assert problems == case.causes
    assert pod.gpus == case.gpus


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_count_has_its_key_and_may_be_lowered_unless_it_is_exact(case: Case) -> None:
    claim = read(pod_object(**case.pod)).claim
    if claim is None or claim.lone or claim.min_member is None:
        return
    assert claim.count_key, "warnings name it: the dialect's module gives it"
    assert claim.replicas or claim.dialect in SAY_MIN_MEMBER, "explain/relaxations.py lacks the dialect"


def _field(cause: object) -> str:
    assert isinstance(cause, BadValue)
    assert cause.where == "pod/ns/p"
    assert cause.expected
    return cause.field


def _container(name: str, gpus: int = 0, cpu: str = "0", **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": gpus}}, **more}


def test_all_containers_are_summed_in_order() -> None:
    pod = read(
        pod_object(
            spec={"containers": [_container("x", 2, "1"), _container("y"), _container("z", 1, "500m")]}
        )
    )
    assert (pod.gpus, pod.container_gpus) == (3, (("x", 2), ("z", 1)))
    assert pod.resources == Resources(1500, 0, 1)


def test_further_resources_are_summed_by_name() -> None:
    card = {"requests": {"rdma/hca": "1", "hugepages-2Mi": "4Mi"}}
    pod = read(
        pod_object(spec={"containers": [{"name": "a", "resources": card}, {"name": "b", "resources": card}]})
    )
    assert pod.resources.others == (("hugepages-2Mi", 8 << 20), ("rdma/hca", 2))


def test_init_containers_count_by_the_largest_and_sidecars_add_up() -> None:
    inits = [
        _container("big", 2, "3"),
        _container("sidecar", 1, "1", restartPolicy="Always"),
        _container("after", 1, "3"),
    ]
    pod = read(pod_object(spec={"containers": [_container("main", 1, "2")], "initContainers": inits}))
    assert pod.resources.cpu_milli == 4000  # after + sidecar
    assert (pod.gpus, pod.container_gpus) == (2, (("sidecar", 1), ("main", 1)))


def test_overhead_is_added_and_limits_stand_for_requests() -> None:
    pod = read(
        pod_object(limits={"cpu": "2", "memory": "1Gi"}, spec={"overhead": {"cpu": "250m", "memory": "1Mi"}})
    )
    assert pod.resources == Resources(2250, (1 << 30) + (1 << 20), 1)


def test_what_the_pod_as_a_whole_asks_for_stands_for_the_sum_of_its_containers() -> None:
    whole = {"requests": {"cpu": "32"}, "limits": {"memory": "8Gi"}}
    pod = read(pod_object(limits={"cpu": "2", **GPU}, spec={"resources": whole}))
    assert (pod.resources, pod.gpus) == (Resources(32_000, 8 << 30, 1), 1)


def test_each_pod_of_a_template_is_named_in_what_is_wrong_with_it() -> None:
    for name in ("a", "b"):
        (cause,) = read(pod_object(name=name, limits={"aliyun.com/gpu": "half"})).causes
        assert isinstance(cause, BadValue)
        assert cause.where == f"pod/ns/{name}"


def test_which_nodes_admit_it() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    by_name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    terms = [{"matchExpressions": [zone], "matchFields": [by_name]}, {}]
    affinity: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    spec = {
        "nodeSelector": {"pool": "gpu"},
        "affinity": affinity,
        "tolerations": [{"key": "t", "effect": "NoSchedule"}],
    }
    assert read(pod_object(spec=spec)).rules == NodeRules(
        (SelectorTerm("pool", "In", ("gpu",)),),
        ((SelectorTerm("zone", "In", ("a", "b")), SelectorTerm("metadata.name", "In", ("n1",))),),
        (Toleration("t", "Equal", "", "NoSchedule"),),
    )


_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PREFERENCES: dict[str, tuple[dict[str, Any], bool]] = {
    "none": ({}, False),
    "nodes": ({"affinity": {"nodeAffinity": {_PREFERRED: [{"weight": 1, "preference": {}}]}}}, True),
    "pods": ({"affinity": {"podAffinity": {_PREFERRED: [{"weight": 1, "podAffinityTerm": {}}]}}}, True),
    "no pods": ({"affinity": {"podAntiAffinity": {_PREFERRED: [{"weight": 1}]}}}, True),
    "empty lists": (
        {"affinity": {"nodeAffinity": {_PREFERRED: []}, "podAffinity": {_PREFERRED: None}}},
        False,
    ),
    "what is required": (
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        False,
    ),
    "spread if possible": (
        {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}]},
        True,
    ),
    "spread": (
        {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
        False,
    ),
}


@pytest.mark.parametrize(("spec", "prefers"), PREFERENCES.values(), ids=PREFERENCES.keys())
def test_whether_it_has_preferences(spec: dict[str, Any], prefers: bool) -> None:
    assert read(pod_object(limits=GPU, spec=spec)).preferences is prefers
    assert not read(pod_object(limits=GPU, spec=spec, scheduler="another")).preferences


def test_a_selector_of_empty_terms_admits_no_node() -> None:
    affinity: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    }
    assert read(pod_object(spec={"affinity": affinity})).rules.any_of == (
        (SelectorTerm("metadata.name", "In", ()),),
    )


def test_who_owns_it_and_where_it_stands() -> None:
    owners = [{"uid": "other"}, {"uid": "job", "controller": True}]
    pod = read(
        pod_object(
            name="train-worker-12",
            ownerReferences=owners,
            deletionTimestamp="2026-01-01T00:00:00Z",
            spec={"priority": 7, "schedulingGates": [{"name": "x"}]},
        )
    )
    assert (pod.owner, pod.rank, pod.priority, pod.created) == ("job", 12, 7, 1767225600.0)
    assert (pod.terminating, pod.gated, pod.present) == (True, True, False)


def test_events_go_to_its_controller() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "other"}
    gpu_pod = read(pod_object(labels=GANG, ownerReferences=[owner, job]))
    assert gpu_pod.controller == Controller("batch/v1", "Job", "train", "job")
    assert read(pod_object(labels=GANG, ownerReferences=[owner])).controller is None


@pytest.mark.parametrize(
    ("name", "labels", "owner"),
    [
        ("server-5d9", {"pod-template-hash": "5d9"}, "Deployment/server"),
        ("server-5d9", {}, "set"),  # a ReplicaSet of its own
        ("server", {"pod-template-hash": "5d9"}, "set"),
    ],
)
def test_a_rollout_goes_on_with_the_gang(name: str, labels: dict[str, str], owner: str) -> None:
    controller = {"uid": "set", "kind": "ReplicaSet", "name": name, "controller": True}
    assert read(pod_object(labels=labels, ownerReferences=[controller])).owner == owner


@pytest.mark.parametrize(
    ("phase", "states"),
    [
        ("Running", (True, False, False)),
        ("Succeeded", (False, True, True)),
        ("Failed", (False, True, False)),
        ("", (False, False, False)),
    ],
)
def test_its_phase(phase: str, states: tuple[bool, bool, bool]) -> None:
    pod = read(pod_object(status={"phase": phase}))
    assert (pod.running, pod.finished, pod.succeeded) == states


ALLOCATIONS: dict[str, tuple[str, int | None]] = {
    "as written": (json.dumps({"version": 1, "gpus": [1, 3]}), 0b1010),
    "of another number of GPUs": (json.dumps({"version": 1, "gpus": [1]}), None),
    "the same GPU twice": (json.dumps({"version": 1, "gpus": [1, 1]}), None),
    "of a later version": (json.dumps({"version": 2, "gpus": [1, 3]}), None),
    "an index far away": (json.dumps({"version": 1, "gpus": [1, 10**9]}), None),
    "a negative index": (json.dumps({"version": 1, "gpus": [1, -1]}), None),
    "booleans": (json.dumps({"version": 1, "gpus": [True, False]}), None),
    "a list": ("[1, 3]", None),
    "no JSON": ("1,3", None),
    "very deep": ("[" * 10_000, None),
    "very long": (" " * 20_000 + "{}", None),
}


@pytest.mark.parametrize(("text", "mask"), ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_which_gpus_a_bound_pod_has(text: str, mask: int | None) -> None:
    pod = read(
        pod_object(limits={"nvidia.com/gpu": 2}, node="n", annotations={"gpu.topology/allocation": text})
    )
    assert pod.allocation == mask
    usage = pod.usage
    assert usage is not None
    assert (usage.gpus, usage.unindexed_gpus) == ((mask, 0) if mask else (0, 2))


@pytest.mark.parametrize("limits", [GPU, {}], ids=["with GPUs", "without"])
def test_with_whom_a_bound_member_was_let_go_is_read_back(limits: dict[str, int]) -> None:
    annotations = {"gpu.topology/decision": '{"needed":2,"left_out":1,"newest":5.0}'}
    member = pod_object(labels=GANG, limits=limits, annotations=annotations, node="n")
    assert read(member).batch == Batch(needed=2, left_out=1, newest=5.0)
    of_another = pod_object(limits=limits, annotations=annotations, node="n", scheduler="other")
    assert read(of_another).batch is None


def test_two_dialects_that_agree_are_one_claim() -> None:
    second = GangClaim("other", "train")
    assert merge_readings("p", [Reading(), Reading(ACK), Reading(second)]) == Reading(ACK)


@pytest.mark.parametrize("second", [GangClaim("other", "run"), GangClaim("other", "train", min_member=3)])
def test_two_dialects_that_disagree_name_both(second: GangClaim) -> None:
    (cause,) = merge_readings("p", [Reading(ACK), Reading(second)]).causes
    assert isinstance(cause, DialectsDisagree)
    assert cause.first == "ack: gang train of 2"
    assert cause.second.startswith("other: gang ")


def test_what_the_shim_holds_is_read_or_refused() -> None:
    """Otherwise the shim would hold a pod for which the service has no gang, and it would wait for ever."""
    args = (Path(__file__).parents[2] / "shim/internal/plugin/args.go").read_text()

    def held(field: str) -> set[str]:
        match = re.search(rf"{field}:\s+\[\]string\{{([^}}]*)\}}", args)
        assert match
        return set(re.findall(r'"([^"]+)"', match[1]))

    settings = DialectSettings()
    assert held("Resources") == {*settings.gpu_resources, GPU_MEM, SHARED_GPUS}
    assert held("GangKeys") == set(gang_keys())


@pytest.mark.parametrize(
    ("annotations", "read_as"),
    [
        ({"traceparent": PARENT}, PARENT),
        ({"traceparent": "00-1-2-01", "tracing.k8s.io/traceparent": PARENT}, PARENT),
        ({"traceparent": f"{PARENT}<script>"}, ""),
        ({}, ""),
    ],
)
def test_the_trace_of_what_made_a_pod(annotations: dict[str, str], read_as: str) -> None:
    assert read(pod_object(annotations=annotations, limits=GPU)).traceparent == read_as
