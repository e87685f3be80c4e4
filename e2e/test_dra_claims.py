"""Claims from templates: members get the planned GPUs, where all that they ask for can be met."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from e2e import dra, objects
from e2e.audit import LEASE_S
from e2e.record import Record
from e2e.refusals import refused
from e2e.scene import Scene
from local_cluster.stack import Stack

BIG = f"device.attributes['{dra.DRIVER}'].model == 'big'"


@pytest.fixture(autouse=True)
def served(scene: Scene) -> Iterator[None]:
    with dra.device_class(scene):
        yield


def nodes_of(scene: Scene, names: list[str]) -> Counter[str]:
    """How many of these pods are on each node."""
    path = f"/api/v1/namespaces/{scene.name}/pods"
    return Counter(scene.client.get(f"{path}/{name}")["spec"]["nodeName"] for name in names)


def test_gangs_in_random_order_get_exactly_the_planned_devices(scene: Scene) -> None:
    """Claims from templates and plain resources, mixed. Claims freed with their pods are used again."""
    shuffled = random.Random(7)
    dra.node(scene, "a", topology=objects.DOCUMENT_MESH)
    dra.node(scene, "b", topology=objects.DOCUMENT_MESH, uuids=(3, 1, 4, 0, 5, 2, 6, 7))
    dra.template(scene, "two", dra.request("r", scene.name, 2))
    for turn in range(4):
        pods = [*dra.claiming(f"c{turn}", 4, "two"), *dra.gang(f"g{turn}", 4, 1)]
        shuffled.shuffle(pods)
        names = scene.create(*pods)
        scene.runs(names)
        assert dra.judge(scene) == 8
        scene.delete(*names)
    dra.judge(scene)


def test_several_claims_and_requests_have_the_order_of_the_plan(scene: Scene) -> None:
    dra.node(scene, "a", topology=objects.DOCUMENT_MESH, uuids=(7, 6, 5, 4, 3, 2, 1, 0))
    dra.template(scene, "a", dra.request("r", scene.name, 2), dra.request("s", scene.name))
    dra.template(scene, "b", dra.request("r", scene.name))
    names = scene.create(*dra.claiming("g", 2, "a", "b"))
    scene.runs(names)
    assert dra.judge(scene) == 2


def test_selectors_choose_nodes_and_gpus(scene: Scene) -> None:
    """Of a node with some GPUs of the model these alone are planned, and the refusal says how many."""
    dra.node(scene, "small")
    big = dra.node(scene, "big", gpus=4, big=range(4))
    mixed = dra.node(scene, "mixed", big=(1, 4, 6))
    dra.template(scene, "big", dra.request("r", scene.name, 1, BIG))
    names = scene.create(*dra.claiming("g", 7, "big"))
    scene.runs(names)
    assert nodes_of(scene, names) == {big: 4, mixed: 3}
    devices_given = {device for devices in dra.planned(scene).values() for device in devices}
    assert {f"{dra.DRIVER}/{mixed}/gpu-{number}" for number in (1, 4, 6)} <= devices_given
    (more,) = scene.create(*dra.claiming("more", 1, "big"))
    scene.says(more, "on 1 node resourceClaims match 3 of 8 GPUs")
    scene.runs(scene.create(*dra.gang("plain", 5)))
    dra.judge(scene)


def test_the_first_subrequest_that_fits_the_gang_is_planned(scene: Scene) -> None:
    """Big GPUs while there are some, else small ones, and no member with both."""
    mixed = dra.node(scene, "mixed", gpus=4, big=(1, 2))
    small = dra.node(scene, "small", gpus=4)
    request = dra.first_available("r", scene.name, BIG, f"!({BIG})", count=2)
    dra.template(scene, "some", request)
    first = scene.create(*dra.claiming("g", 1, "some"))
    scene.runs(first)
    assert {*dra.planned(scene)[first[0]]} == {f"{dra.DRIVER}/{mixed}/gpu-{number}" for number in (1, 2)}
    second_gang = scene.create(*dra.claiming("h", 3, "some"))
    scene.runs(second_gang)
    assert nodes_of(scene, second_gang) == {mixed: 1, small: 2}
    assert dra.judge(scene) == 4
    scene.delete(*second_gang, *first)
    again = scene.create(*dra.claiming("i", 1, "some"))
    scene.runs(again)
    assert nodes_of(scene, again) == {mixed: 1}
    assert {*dra.planned(scene)[again[0]]} == {f"{dra.DRIVER}/{mixed}/gpu-{number}" for number in (1, 2)}
    dra.judge(scene)


def test_subrequests_for_different_numbers_of_gpus(scene: Scene) -> None:
    """One big GPU, else any two. Two members have not enough big ones, so one gets a big and a small one.

    The allocator alone would give it the big one, by its first subrequest."""
    mixed = dra.node(scene, "mixed", gpus=4, big=(1,))
    dra.template(scene, "some", dra.first_available("r", scene.name, BIG, "", counts=(1, 2)))
    alone = scene.create(*dra.claiming("g", 1, "some"))
    scene.runs(alone)
    assert dra.planned(scene)[alone[0]] == [f"{dra.DRIVER}/{mixed}/gpu-1"]
    assert dra.judge(scene) == 1
    scene.delete(*alone)
    names = scene.create(*dra.claiming("h", 2, "some"))
    scene.runs(names)
    assert [len(dra.planned(scene)[name]) for name in names] == [2, 2]
    assert dra.judge(scene) == 2
    claims = scene.client.get(dra.claims(scene))["items"]
    results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
    assert {result["request"] for result in results} == {"r/s1"}
    (more,) = scene.create(*dra.claiming("more", 1, "some"))
    scene.says(more, "2 nvidia.com/gpu")
    scene.delete(*names)
    scene.runs([more])
    dra.judge(scene)


def test_all_gpus_of_a_node_that_match(scene: Scene) -> None:
    """The most first. A node with a tainted one is none, and neither is one where a pod has one of them."""
    dra.node(scene, "worn", gpus=6, worn=(3,))
    taken_node = dra.node(scene, "taken", gpus=5)
    large, small = dra.node(scene, "large", gpus=4), dra.node(scene, "small", gpus=2)
    dra.template(scene, "all", dra.request("r", scene.name, allocationMode="All", count=0))
    dra.template(scene, "one", dra.request("r", scene.name))
    pods = dra.claiming("one", 1, "one")
    pods[0]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": taken_node}
    scene.runs(scene.create(*pods))
    for gang, home, gpus in (("g", large, 4), ("h", small, 2)):
        names = scene.create(*dra.claiming(gang, 1, "all"))
        scene.runs(names)
        assert nodes_of(scene, names) == {home: 1}
        assert len(dra.planned(scene)[names[0]]) == gpus
    assert dra.judge(scene) == 3
    (more,) = scene.create(*dra.claiming("more", 1, "all"))
    scene.says(more, "takes all GPUs that match")
    scene.delete("g-0")
    scene.runs([more])
    assert dra.judge(scene) == 3


def test_members_share_gpus_by_memory(scene: Scene) -> None:
    """Four of 30Gi on two GPUs of 80Gi, and no fifth. A whole GPU is one without shares."""
    home = dra.node(scene, "a", gpus=2, **dra.shared("80Gi"))
    for name, memory in (("thirty", "30Gi"), ("twenty", "20Gi"), ("huge", "99999999999Ti")):
        dra.template(scene, name, dra.request("r", scene.name, 1, capacity={"requests": {"memory": memory}}))
    names = scene.create(*dra.claiming("g", 4, "thirty"))
    scene.runs(names)
    gpus = [f"{dra.DRIVER}/{home}/gpu-{number}" for number in range(2)]
    assert dra.shares(scene) == {gpu: Counter({"30Gi": 2}) for gpu in gpus}
    (fifth, huge) = scene.create(*dra.claiming("h", 1, "thirty"), *dra.claiming("i", 1, "huge"))
    scene.says(fifth, "30 GiB")
    scene.says(huge, "capacity.requests[memory]")
    fits = scene.create(*dra.claiming("j", 2, "twenty"))
    scene.runs(fits)
    assert dra.judge(scene, shared=True) == 6
    (whole,) = scene.create(*dra.gang("w", 1))
    scene.says(whole, "nvidia.com/gpu")
    scene.delete(huge, *fits, *names)
    scene.runs([fifth, whole])
    assert dra.judge(scene, shared=True) == 2
    shares = dra.shares(scene)
    assert sorted(str(dict(shares[gpu])) for gpu in gpus) == ["{'30Gi': 1}", "{'80Gi': 1}"]


def test_gangs_with_shares_and_with_whole_gpus_in_random_order(scene: Scene) -> None:
    """What claims take of a GPU is no more than it has, and a whole GPU has no other claim."""
    shuffled = random.Random(5075)
    for name in ("a", "b"):
        dra.node(scene, name, gpus=4, **dra.shared("80Gi"))
    for size in (10, 35, 50):
        memory = {"requests": {"memory": f"{size}Gi"}}
        dra.template(scene, f"m{size}", dra.request("r", scene.name, 1 + (size == 10), capacity=memory))
    for turn in range(3):
        pods = [pod for size in (10, 35, 50) for pod in dra.claiming(f"s{size}-{turn}", 3, f"m{size}")]
        pods += dra.gang(f"w{turn}", 2)
        shuffled.shuffle(pods)
        names = scene.create(*pods)
        scene.runs(names)
        assert dra.judge(scene, shared=True) == 11
        for shares_of_gpu in dra.shares(scene).values():
            assert (
                sum(int(memory.removesuffix("Gi")) * number for memory, number in shares_of_gpu.items()) <= 80
            )
        scene.delete(*names)
    dra.judge(scene, shared=True)


def test_members_that_tolerate_a_taint_get_gpus_that_have_it(scene: Scene) -> None:
    dra.node(scene, "a", gpus=4, worn=(0, 3))
    tolerations = [{"key": "worn", "operator": "Exists"}]
    dra.template(scene, "any", dra.request("r", scene.name, 1, tolerations=tolerations))
    dra.template(scene, "sound", dra.request("r", scene.name, 1))
    names = scene.create(*dra.claiming("g", 4, "any"))
    scene.runs(names)
    assert dra.judge(scene) == 4
    scene.delete(*names)
    (refused, *_) = scene.create(*dra.claiming("h", 3, "sound"))
    scene.says(refused, "have 2 nvidia.com/gpu in all")
    dra.judge(scene)


def test_gpus_of_each_member_agree_on_an_attribute(scene: Scene) -> None:
    """Two GPUs of one PCIe root for each member, while plain gangs take single GPUs and free them."""
    shuffled = random.Random(15)
    dra.node(scene, "a", topology=objects.DOCUMENT_MESH)
    dra.node(scene, "b", topology=objects.DOCUMENT_MESH, uuids=(3, 1, 4, 0, 5, 2, 6, 7))
    dra.template(scene, "pair", dra.request("r", scene.name, 2), match=dra.PCIE_ROOT)
    for turn in range(4):
        pods = [*dra.claiming(f"c{turn}", 4, "pair"), *dra.gang(f"g{turn}", 3)]
        shuffled.shuffle(pods)
        names = scene.create(*pods)
        scene.runs(names)
        assert dra.judge(scene) == 7
        pairs = [devices for name, devices in dra.planned(scene).items() if name.startswith("c")]
        roots = [{dra.root_of(int(device.rpartition("-")[2])) for device in devices} for devices in pairs]
        assert [len(root) for root in roots] == [1] * 4
        scene.delete(*names)
    dra.template(scene, "odd", dra.request("r", scene.name, 3), match="example.com/noSuch")
    (odd,) = scene.create(*dra.claiming("odd", 1, "odd"))
    scene.says(odd, "must agree on matchAttribute example.com/noSuch, and no node")


def test_a_costly_selector_is_refused_and_delays_nobody(scene: Scene) -> None:
    """The API server admits it: its worst case is below the limit there."""
    dra.node(scene, "a")
    numbers = "[" + ",".join(map(str, range(60))) + "]"
    dra.template(
        scene, "dear", dra.request("r", scene.name, 1, f"{numbers}.all(x, {numbers}.all(y, x + y >= 0))")
    )
    (dear,) = scene.create(*dra.claiming("dear", 1, "dear"))
    scene.runs(scene.create(*dra.gang("g", 4)))
    scene.says(dear, "cost limit")


def test_claims_of_other_drivers_beside_gpus(scene: Scene) -> None:
    """Two cards on each node: two members fit on a node, though four have room for their GPUs."""
    with dra.nic_class(scene) as nic:
        dra.node(scene, "without")
        dra.node(scene, "a", nics=2)
        dra.node(scene, "b", nics=2)
        dra.template(scene, "both", dra.request("gpus", scene.name, 2), dra.request("card", nic))
        names = scene.create(*dra.claiming("g", 4, "both"))
        scene.runs(names)
        assert sorted(nodes_of(scene, names).values()) == [2, 2]
        assert dra.judge(scene) == 4
        pods = dra.gang("plain", 1, 1)
        pods[0]["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": "card"}]
        dra.template(scene, "card", dra.request("card", nic))
        (plain,) = scene.create(*pods)
        scene.says(plain, "cannot allocate all claims")
        scene.delete(*names)
        scene.runs([plain])


def test_a_card_of_each_member_agrees_with_its_gpus(scene: Scene) -> None:
    """Four GPUs and two cards at two PCIe roots of each node: two members fit on a node, one at each root.
    Plain gangs take single GPUs meanwhile, and another pod a card."""
    shuffled = random.Random(31)
    with dra.nic_class(scene) as nic:
        nodes = [dra.node(scene, name, gpus=4, nics=2) for name in "abc"]
        dra.template(
            scene, "both", dra.request("card", nic), dra.request("gpu", scene.name), match=dra.PCIE_ROOT
        )
        for turn in range(3):
            pods = [*dra.claiming(f"c{turn}", 4, "both"), *dra.gang(f"g{turn}", 3)]
            shuffled.shuffle(pods)
            names = scene.create(*pods)
            scene.runs(names)
            assert dra.judge(scene) == 7
            roots = dra.roots(scene)
            members = [name for name in names if name.startswith("c")]
            assert [len(set(roots[name])) for name in members] == [1] * 4
            assert max(nodes_of(scene, members).values()) <= 2
            scene.delete(*names)
        names = scene.create(*dra.claiming("all", 5, "both"), *dra.claiming("last", 1, "both"))
        scene.runs(names)
        assert nodes_of(scene, names) == dict.fromkeys(nodes, 2)
        assert sorted(dra.roots(scene).values()) == [[0, 0]] * 3 + [[1, 1]] * 3
        (more,) = scene.create(*dra.claiming("more", 1, "both"))
        scene.says(more, "no free devices that agree with 1 of its GPUs")
        scene.delete(names[-1])
        scene.runs([more])
        assert dra.judge(scene) == 6


def test_a_claim_that_members_share_gets_its_devices_first(scene: Scene) -> None:
    """Another pod gets them for it. Before, the gang is refused with the claim's name."""
    with dra.nic_class(scene) as nic:
        home = dra.node(scene, "a", nics=1)
        dra.node(scene, "b")
        spec = {"devices": {"requests": [dra.request("card", nic)]}}
        scene.client.post(dra.claims(scene), {"metadata": {"name": "shared"}, "spec": spec})
        pods = [*dra.gang("g", 2), objects.pod("first", gpus=0)]
        for pod in pods:
            pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "shared"}]
        names = scene.create(*pods[:2])
        scene.says(names[0], "2 members name it")
        first = scene.create(pods[2])
        scene.runs(first)
        scene.runs(names)
        scene.delete(*first)
        assert nodes_of(scene, names) == {home: 2}
        assert dra.judge(scene) == 2


def test_members_share_gpus_of_a_claim_that_has_them(scene: Scene) -> None:
    """A pod outside of the gang gets the GPUs for the claim. Before, the gang is refused with its name."""
    dra.node(scene, "a", gpus=2)
    dra.node(scene, "b", gpus=2)
    spec = {"devices": {"requests": [dra.request("r", scene.name, 1)]}}
    scene.client.post(dra.claims(scene), {"metadata": {"name": "shared"}, "spec": spec})
    dra.template(scene, "own", dra.request("r", scene.name, 1))
    pods = [*dra.claiming("g", 1, "own"), *dra.claiming("h", 2)]
    first = objects.pod("first", gpus=0)
    for pod in (first, *pods):
        pod["spec"].setdefault("resourceClaims", []).append({"name": "card", "resourceClaimName": "shared"})
    names = scene.create(*pods)
    scene.says(names[0], "resourceClaims card, request r is")
    scene.runs(scene.create(first))
    scene.runs(names)
    assert len(nodes_of(scene, ["first", *names])) == 1
    claim = scene.client.get(f"{dra.claims(scene)}/shared")
    assert len(claim["status"]["reservedFor"]) == 4
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 1


def test_what_is_not_planned_names_claim_request_and_field(scene: Scene) -> None:
    dra.node(scene, "a")
    requests = (dra.request("r", scene.name, allocationMode="All", count=0), dra.request("s", scene.name))
    dra.template(scene, "all", *requests)
    (name,) = scene.create(*dra.claiming("g", 1, "all"))
    scene.says(name, "resourceClaims all, request r, allocationMode")


def test_a_withdrawn_gang_holds_no_devices(scene: Scene) -> None:
    dra.node(scene, "a")
    dra.template(scene, "two", dra.request("r", scene.name, 2))
    gate = {"schedulingGates": [{"name": "e2e.muster.dev/later"}]}
    pods = dra.claiming("g", 2, "two")
    for pod in pods:
        pod["spec"] |= gate
    names = scene.create(*pods)
    with refused(scene, names[1]):
        for name in names:
            path = f"/api/v1/namespaces/{scene.name}/pods/{name}"
            scene.client.patch(path, {"spec": {"schedulingGates": None}})
        scene.event("FailedScheduling", names[1])
    scene.runs(names)
    assert dra.judge(scene) == 2


@pytest.mark.grace(LEASE_S)
def test_the_scheduler_is_killed_between_claims_and_bindings(scene: Scene, stack: Stack) -> None:
    """The claims stay. The next leader takes their devices from them, and the gang is planned anew."""
    dra.node(scene, "a")
    dra.node(scene, "b")
    dra.template(scene, "two", dra.request("r", scene.name, 2))
    path = dra.claims(scene)
    for claims_written in (1, 4):
        with Record(scene.client, (path,)) as record:
            names = scene.create(*dra.claiming(f"g{claims_written}", 4, "two"))

            def written() -> int:
                return len(dra.allocated(record.live(path)))

            record.until(lambda: written() >= claims_written, "claims are written")  # noqa: B023
            stack.scheduler.kill()
        stack.start_scheduler()
        scene.runs(names)
        assert dra.judge(scene) == 4
        scene.delete(*names)
