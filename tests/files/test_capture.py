"""`muster capture`: a live cluster as a file, and the same decision from it as from the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from muster.adapters.files.decide import decide
from muster.adapters.files.reading import cluster, sources
from muster.adapters.files.reading.capture import capture, node_item, pod_item, text_of
from muster.adapters.files.run import planner
from muster.adapters.kube.client import KubeClient
from muster.cli import main
from muster.dialects import keys
from muster.dialects.gangs import kai, other_systems, own, ranks
from muster.dialects.nodes import nodes
from muster.dialects.objects import Metadata, NodeObject, PodObject
from muster.dialects.pods import pods
from muster.dialects.settings import DEFAULTS
from muster.domain.allocation import RESERVED_KEYS
from muster.domain.decision import Placed
from muster.domain.levels import DEFAULT_LEVELS, FabricLevel
from muster.domain.peers import matches
from muster.gangs.coordinator import Coordinator
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import Instruction, Solve
from muster.placement.limits import Timings
from tests.adapters.fake_api import FakeApi, config_map, custom, kubeconfig
from tests.command import invoke
from tests.files.manifests import Object, decisions, gang, node, pod, spots


@pytest.fixture
def api() -> FakeApi:
    """Eight nodes; gangs that fit, that don't, that wait; pods that run."""
    fake = FakeApi()
    fake.nodes = [live(node(f"n{i}", 8, f"r{i // 2}"), i) for i in range(8)]
    running = [pod(f"busy-{i}", gpus=1 + i % 5, nodeName=f"n{i}", env="s3cret") for i in range(8)]
    for i, manifest in enumerate(running):
        if i % 2:
            mask = list(range(1 + i % 5))
            manifest["metadata"]["annotations"] = {
                "gpu.topology/allocation": json.dumps({"version": 1, "gpus": mask}),
                "kubectl.kubernetes.io/last-applied-configuration": "s3cret",
            }
    pending = [
        *gang("train", 6, 2),
        *gang("wide", 4, 4, priority=7),
        *gang("never", 9, 8),
        *gang("half", 3)[:2],
    ]
    for i, manifest in enumerate([*running, *pending]):
        manifest["metadata"]["labels"]["password"] = "s3cret"
        fake.pods[f"{i:03}"] = live(manifest, i)
    return fake


def live(manifest: Object, number: int) -> Object:
    """With what an API server adds."""
    manifest["metadata"] |= {
        "uid": f"uid-{manifest['metadata']['name']}",
        "resourceVersion": str(number),
        "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
        "managedFields": [{"manager": "s3cret"}],
    }
    if manifest["kind"] == "Pod":
        manifest["metadata"]["namespace"] = "ml"
        for container in manifest["spec"]["containers"]:
            container["env"] = [{"name": "TOKEN", "value": "s3cret"}]
    return manifest


@pytest.fixture
async def client(api: FakeApi, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as connected:
        yield connected


def service_says(api: FakeApi) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """What the coordinator of the service plans on the same objects: gang → pod → (node, GPUs)."""
    coordinator, plan = Coordinator(), planner(None)
    todo: list[Instruction] = []
    for item in api.nodes:
        read = nodes.read(_decoded(item, NodeObject))
        todo += coordinator.handle(inputs.NodeSeen(0.0, read))
    for item in api.pods.values():
        todo += coordinator.handle(inputs.PodSeen(0.0, pods.read(_decoded(item, PodObject))))
    todo += coordinator.handle(inputs.SessionOpened(0.0, 1, ()))
    todo += coordinator.handle(inputs.Synced(0.0))
    gpus_by_pod = {}
    while todo:
        instruction = todo.pop(0)
        if isinstance(instruction, Solve):
            decision = plan(instruction.snapshot, instruction.request, Timings(lambda: 0.0))
            if isinstance(decision, Placed):
                gpus_by_pod[decision.gang.name] = {m.name: (m.node, m.gpus) for m in decision.members}
            todo += coordinator.handle(
                inputs.SolveAnswered(0.0, instruction.gang, instruction.generation, decision, "")
            )
    return gpus_by_pod


def _decoded(manifest: Object, shape: Any) -> Any:
    return msgspec.convert(manifest, shape)


async def test_what_is_captured_is_decided_as_in_the_service(
    api: FakeApi, client: KubeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.adapters.files.reading.capture.PAGE_SIZE", 7)
    captured = await capture(client)
    assert (captured.nodes, captured.pods, captured.problems) == (8, 29, ())
    assert [query["limit"] for query in api.lists] == ["7"] * 5
    expected = service_says(api)
    assert set(expected) == {"train", "wide"}
    for suffix in ("json", "yaml"):
        file = tmp_path / f"captured.{suffix}"
        file.write_text(text_of(captured.items, suffix == "yaml"))
        answer = decisions(str(file))
        assert {g["name"]: g["status"] for g in answer["gangs"]} == {
            "wide": "placed",
            "train": "placed",
            "never": "unplaceable",
            "half": "waiting",
        }
        spots_by_gang = {g["name"]: spots(g) for g in answer["gangs"] if g["status"] == "placed"}
        assert spots_by_gang == {
            name: {p: f"{n}:{','.join(map(str, gpus))}" for p, (n, gpus) in members.items()}
            for name, members in expected.items()
        }


async def test_nothing_is_kept_that_is_not_read(api: FakeApi, client: KubeClient) -> None:
    text = text_of((await capture(client)).items, as_yaml=False)
    for secret in ("s3cret", "image", "env", "managedFields", "password", "resourceVersion"):
        assert secret not in text
    first = json.loads(text)["items"][-1]
    assert first == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "half-1",
            "namespace": "ml",
            "uid": "uid-half-1",
            "creationTimestamp": "2026-01-01T00:00:28Z",
            "labels": {"gpu-topology": "half", "gpu-topology-replica": "3"},
        },
        "spec": {
            "schedulerName": "muster",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
        },
    }


@pytest.mark.parametrize(
    "key",
    [
        *RESERVED_KEYS,
        *own.KEYS,
        *kai.GANG_KEYS,
        kai.ROLE,
        kai.POLICY,
        kai.SUBGROUP,
        kai.PREEMPTIBILITY,
        *other_systems.places(),
        *ranks.KEYS,
        pods.TEMPLATE_HASH,
        keys.MIRROR,
        keys.MATRIX,
        keys.MACHINE,
        keys.ACK_NAME,
        keys.ACK_REPLICAS,
        keys.SHARED_GPUS,
        keys.MEMORY_BY_GPU,
    ],
)
def test_every_annotation_and_label_that_is_read_is_kept(key: str) -> None:
    meta = Metadata(name="x", labels={key: "v", "other": "v"}, annotations={key: "v", "other": "v"})
    metadata = pod_item(PodObject(metadata=meta))["metadata"]
    assert metadata["labels"] == metadata["annotations"] == {key: "v"}
    assert node_item(NodeObject(metadata=meta))["metadata"]["annotations"] == {key: "v"}


async def test_captured_twice_is_the_same(api: FakeApi, client: KubeClient, tmp_path: Path) -> None:
    """A capture of what a capture wrote loses nothing: the facts are equal, without labels of pods by which
    no pod selects others."""
    items = (await capture(client)).items
    file = tmp_path / "c.json"
    file.write_text(text_of(items, as_yaml=False))
    with file.open("rb") as unused:
        read_back = cluster.cluster_of(sources.read([str(file)], unused), DEFAULTS)
    assert read_back.nodes == tuple(nodes.read(_decoded(n, NodeObject)) for n in api.nodes)
    selected = []
    for item in api.pods.values():
        read_pod = pods.read(_decoded(item, PodObject))
        labels = tuple(pair for pair in read_pod.labels if pair[0] != "password")
        selected.append(replace(read_pod, labels=labels))
    assert read_back.pods == tuple(selected)
    assert len(decide(read_back, planner(None), lambda: 0.0).outcomes) == 4


SYSTEM, POLICIES = (f"/api/v1/namespaces/{name}/configmaps" for name in ("kube-system", "muster-system"))


async def test_what_completes_nodes_and_pods_is_captured_too(
    api: FakeApi, client: KubeClient, tmp_path: Path
) -> None:
    api.served[SYSTEM] = [
        config_map("kube-system", "unhealthy-gpu-n0", {"gpus": "7", "note": "s3cret"}),
        config_map("kube-system", "coredns", {"Corefile": "s3cret"}),
    ]
    levels = "topologyAwareScheduling: {levels: [{name: row, label: example.com/row}]}"
    api.served[POLICIES] = [config_map("muster-system", "kai-scheduler-config", {"config.yaml": levels})]
    spec = {"minMember": 2, "priorityClassName": "s3cret"}
    of_kai = custom("scheduling.run.ai/v2alpha2", "PodGroup", "kais", spec)
    of_kai["status"] = {"phase": "s3cret"}
    api.served["/apis/scheduling.run.ai/v2alpha2/podgroups"] = [of_kai]
    captured = await capture(client)
    assert captured.problems == ()
    file = tmp_path / "c.json"
    file.write_text(text_of(captured.items, as_yaml=False))
    assert "s3cret" not in file.read_text()
    with file.open("rb") as unused:
        read_back = cluster.cluster_of(sources.read([str(file)], unused), DEFAULTS)
    assert {n.name: n.unhealthy for n in read_back.nodes if n.unhealthy} == {"n0": 1 << 7}
    assert read_back.policies.levels == (*DEFAULT_LEVELS, FabricLevel("row", ("example.com/row",)))
    assert [(group.key, group.min_member) for group in read_back.pod_groups] == [
        (("default", "kai", "kais"), 2)
    ]


BUDGETS = "/apis/policy/v1/poddisruptionbudgets"


async def test_disruption_budgets_are_captured_with_the_labels_that_they_select(
    api: FakeApi, client: KubeClient, tmp_path: Path
) -> None:
    spec = {"selector": {"matchLabels": {"team": "a"}}, "minAvailable": "s3cret"}
    budget = custom("policy/v1", "PodDisruptionBudget", "b", spec, namespace="ml")
    budget["metadata"] |= {"generation": 2, "annotations": {"note": "s3cret"}}
    budget["status"] = {"observedGeneration": 2, "disruptionsAllowed": 3}
    api.served[BUDGETS] = [budget]
    api.pods["000"]["metadata"]["labels"]["team"] = "a"
    file = tmp_path / "c.json"
    file.write_text(text_of((await capture(client)).items, as_yaml=False))
    assert "s3cret" not in file.read_text()
    with file.open("rb") as unused:
        read_back = cluster.cluster_of(sources.read([str(file)], unused), DEFAULTS)
    (read_budget,) = read_back.budgets
    assert (read_budget.key, read_budget.allowed) == ("ml/b", 3)
    covered = [pod.name for pod in read_back.pods if matches(read_budget.selector, dict(pod.labels))]
    assert covered == ["busy-0"]


async def test_a_capture_without_budgets_says_what_it_lacks(api: FakeApi, client: KubeClient) -> None:
    api.forbidden.add(BUDGETS)
    (problem,) = (await capture(client)).problems
    assert problem.endswith("left out. So `muster place` may name victims that a budget protects")


async def test_what_may_not_be_read_beside_them_is_left_out_and_named(
    api: FakeApi, client: KubeClient
) -> None:
    api.forbidden.add(SYSTEM)
    captured = await capture(client)
    assert (captured.nodes, captured.pods) == (8, 29)
    (problem,) = captured.problems
    assert problem == "GET configmaps kube-system: 403, refused by the test: left out"


async def test_a_list_whose_token_expired_is_begun_again(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.adapters.files.reading.capture.PAGE_SIZE", 10)
    api.expire_token = True
    assert (await capture(client)).pods == 29


async def test_what_can_not_be_read_is_named(api: FakeApi, client: KubeClient) -> None:
    api.pods["001"]["spec"]["containers"] = 5
    captured = await capture(client)
    assert (captured.pods, len(captured.problems)) == (28, 1)
    assert "ml/busy-1" in captured.problems[0]


async def test_the_command_writes_a_file(api: FakeApi, tmp_path: Path) -> None:
    async with api.running() as port:
        config = kubeconfig(tmp_path, port)
        for name, load in (("c.json", json.loads), ("c.yaml", yaml.safe_load)):
            file = tmp_path / name
            result = await asyncio.to_thread(invoke, main, "capture", "--kubeconfig", config, "-o", str(file))
            assert (result.exit_code, result.stdout) == (0, ""), result.output
            assert "captured 8 nodes and 29 pods" in result.stderr
            assert file.stat().st_mode & 0o777 == 0o600
            assert load(file.read_text())["kind"] == "List"
        result = await asyncio.to_thread(invoke, main, "capture", "--kubeconfig", config)
        assert len(json.loads(result.stdout)["items"]) == 37
        nowhere = str(tmp_path / "none" / "c.json")
        result = await asyncio.to_thread(invoke, main, "capture", "--kubeconfig", config, "-o", nowhere)
        assert (result.exit_code, "c.json: can't be written: No such file" in result.stderr) == (1, True)
        api.failing = [403]
        result = await asyncio.to_thread(invoke, main, "capture", "--kubeconfig", config)
        assert (result.exit_code, "GET pods: 403, refused by the test" in result.stderr) == (1, True)


def test_no_kubeconfig(tmp_path: Path) -> None:
    result = invoke(main, "capture", "--kubeconfig", str(tmp_path / "none"))
    assert (result.exit_code, "can't use the credentials of" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", ["place", "capture"])
def test_help_teaches_with_examples(command: str) -> None:
    output = invoke(main, command, "--help").output
    assert "Examples" in output
    assert f"muster {command} -" in output


async def test_what_new_pods_need_is_captured(api: FakeApi, client: KubeClient, tmp_path: Path) -> None:
    """A job next to the capture gets the priority, node selector and defaults of the cluster."""
    kinds: dict[str, Object] = {
        "/apis/scheduling.k8s.io/v1/priorityclasses": {"metadata": {"name": "high"}, "value": 1000},
        "/apis/node.k8s.io/v1/runtimeclasses": {
            "metadata": {"name": "kata", "uid": "s3cret"},
            "handler": "s3cret",
            "scheduling": {"nodeSelector": {"kubernetes.io/hostname": "n3"}},
        },
        "/api/v1/limitranges": {
            "metadata": {"name": "lr", "namespace": "ml"},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]},
        },
    }
    api.served |= {path: [item] for path, item in kinds.items()}
    captured = await capture(client)
    assert captured.problems == ()
    by_kind = {item["kind"]: item for item in captured.items if item["kind"].endswith(("Class", "Range"))}
    assert by_kind.keys() == {"PriorityClass", "RuntimeClass", "LimitRange"}
    assert "s3cret" not in json.dumps(by_kind)
    file = tmp_path / "cluster.json"
    file.write_text(text_of(captured.items, as_yaml=False))
    job = pod("new", gpus=1, priorityClassName="high", runtimeClassName="kata")
    new = tmp_path / "new.json"
    new.write_text(json.dumps(job))
    (gang_shown,) = [g for g in decisions(str(file), str(new))["gangs"] if g["name"] == "new"]
    assert (gang_shown["priority"], gang_shown["members"][0]["node"]) == (1000, "n3")
