"""ResourceClaims → the GPUs that pods ask for by them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from muster.dialects.devices import sharers
from muster.dialects.devices.claims import MAX_CAUSES, MAX_CLAIMS, Claims, claims_of
from muster.dialects.devices.objects import ResourceClaimSpec
from muster.dialects.devices.sharers import NewHolder
from muster.dialects.devices.shares import Rounding
from muster.dialects.keys import MIRROR
from muster.dialects.objects import OwnerReference, PodObject
from muster.dialects.pods import pods
from muster.domain.allocation import ALLOCATION
from muster.domain.pod import Pod
from tests.dialects.objects import pod_object

GANG = {"gpu-topology": "g", "gpu-topology-replica": "2"}
CLASSES = {"gpu": "nvidia.com/gpu", "big-gpu": "nvidia.com/gpu", "other-gpu": "amd.com/gpu"}


def request(name: str = "r", device_class: str = "gpu", **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **exactly}}


def first_available(*classes: str, **fields: Any) -> dict[str, Any]:
    """A request with a subrequest for each class, by its name."""
    subrequests = [{"name": name, "deviceClassName": name, **fields} for name in classes]
    return {"name": "r", "firstAvailable": subrequests}


def counted_out(*counts: int) -> dict[str, Any]:
    """A request with a subrequest for each of these numbers of GPUs; 0 is for all of a node."""
    subrequests = [
        {"name": f"s{at}", "deviceClassName": "gpu", **({"count": n} if n else {"allocationMode": "All"})}
        for at, n in enumerate(counts)
    ]
    return {"name": "r", "firstAvailable": subrequests}


@dataclass(frozen=True)
class Case:
    """What claims ask for, and what is read of a pod with one claim for each list of requests."""

    claims: tuple[list[dict[str, Any]], ...]
    gpus: int = 0
    causes: tuple[str, ...] = ()
    constraints: list[dict[str, Any]] = field(default_factory=list)
    shared: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    resource: str = "nvidia.com/gpu"
    counts: tuple[int, ...] = ()
    agreed: tuple[str, ...] = ()


CASES = {
    "one GPU": Case(([request()],), 1),
    "four GPUs": Case(([request(count=4)],), 4),
    "two requests and two claims": Case(([request("a", count=2), request("b")], [request(count=3)]), 6),
    "another class of the same resource": Case(([request(device_class="big-gpu", count=2)],), 2),
    "selectors are not read": Case(
        ([request(count=2, selectors=[{"cel": {"expression": "device.attributes['x'].model == 'big'"}}])],), 2
    ),
    "only watched": Case(([request(adminAccess=True)],), 0),
    "of another driver": Case(([request(device_class="nic", count=2)],), 0),
    "beside another driver's": Case(([request(count=2), request("n", "nic")],), 2),
    "all of another driver's": Case(([request(), request("n", "nic", allocationMode="All")],), 1),
    "all": Case(([request(allocationMode="All", count=0)],), 1, counts=(0,)),
    "all, and more in the pod": Case(
        ([request(allocationMode="All")], [request(), request("s", allocationMode="All")]),
        1,
        (
            'resourceClaims c0, request r, allocationMode is "All", expected ExactCount next to other',
            "resourceClaims c1, request s, allocationMode",
        ),
    ),
    "all beside all of another driver's": Case(
        ([request(allocationMode="All"), request("n", "nic", allocationMode="All")],), 1, counts=(0,)
    ),
    "all of one switch": Case(
        ([request(allocationMode="All")],),
        1,
        (),
        [{"matchAttribute": "pcieRoot"}],
        counts=(0,),
        agreed=("pcieRoot",),
    ),
    "a mode that is not known": Case(
        ([request(allocationMode="Some")],), 1, ('request r, allocationMode is "Some"',)
    ),
    "subrequests with capacity": Case(
        ([first_available("gpu", capacity={"requests": {"memory": "1Gi"}})],),
        1,
        ("resourceClaims c0, request r, capacity",),
    ),
    "subrequests": Case(([first_available("gpu", "big-gpu", count=2)],), 2),
    "subrequests, GPUs and others": Case(
        ([first_available("gpu", "nic")],),
        1,
        ('request r, firstAvailable is "no GPU resource, nvidia.com/gpu"',),
    ),
    "subrequests of two resources": Case(
        ([first_available("gpu", "other-gpu")],),
        1,
        ('request r, firstAvailable is "amd.com/gpu, nvidia.com/gpu"',),
    ),
    "subrequests with different counts": Case(([counted_out(1, 2)],), 1, counts=(1, 2)),
    "subrequests with different counts, and a request": Case(
        ([counted_out(2, 1, 4)], [request(count=3)]), 4, counts=(5, 4, 7)
    ),
    "subrequests of two requests, as many together": Case(([counted_out(1, 2)], [counted_out(2, 1)]), 3),
    "subrequests with different counts of two requests": Case(
        ([counted_out(1, 2, 3)], [counted_out(4, 2)]), 4, counts=(5, 4, 5)
    ),
    "subrequests, all of one": Case(([counted_out(2, 0, 1)],), 1, counts=(2, 0, 1)),
    "subrequests with different counts that agree": Case(
        ([counted_out(1, 2)],), 1, (), [{"matchAttribute": "pcieRoot"}], counts=(1, 2), agreed=("pcieRoot",)
    ),
    "subrequests of another driver": Case(([first_available("nic")],)),
    "subrequests whose GPUs agree": Case(
        ([first_available("gpu", "big-gpu", count=2)],),
        2,
        (),
        [{"requests": ["r"], "matchAttribute": "pcieRoot"}],
        agreed=("pcieRoot",),
    ),
    "GPUs of one subrequest agree": Case(
        ([first_available("gpu", "big-gpu", count=2)],),
        2,
        ("resourceClaims c0, matchAttribute of r/gpu",),
        [{"requests": ["r/gpu"], "matchAttribute": "pcieRoot"}],
    ),
    "two GPUs of one switch": Case(
        ([request(count=2)],), 2, (), [{"matchAttribute": "pcieRoot"}], agreed=("pcieRoot",)
    ),
    "GPUs of two requests that agree twice": Case(
        ([request("a"), request("b", count=2), request("n", "nic")],),
        3,
        (),
        [{"requests": ["a", "b"], "matchAttribute": name} for name in ("pcieRoot", "numaNode", "pcieRoot")],
        agreed=("numaNode", "pcieRoot"),
    ),
    "some of the GPUs agree": Case(
        ([request("a", count=2), request("b")],),
        3,
        ("resourceClaims c0, matchAttribute",),
        [{"requests": ["a"], "matchAttribute": "pcieRoot"}],
    ),
    "GPUs of one of two claims agree": Case(
        ([request(count=2)], []), 2, (), [{"matchAttribute": "pcieRoot"}], agreed=("pcieRoot",)
    ),
    "GPUs of each of two claims agree": Case(
        ([request(count=2)], [request(count=2)]),
        4,
        ("resourceClaims c0, matchAttribute", "resourceClaims c1, matchAttribute"),
        [{"matchAttribute": "pcieRoot"}],
    ),
    "a GPU agrees with one that is only watched": Case(
        ([request(), request("w", adminAccess=True)],), 1, (), [{"matchAttribute": "pcieRoot"}]
    ),
    "two GPUs agree with one that is only watched": Case(
        ([request("w", adminAccess=True), request(count=2)],),
        2,
        (),
        [{"matchAttribute": "pcieRoot"}],
        agreed=("pcieRoot",),
    ),
    "some of the GPUs agree with one that is only watched": Case(
        ([request("a"), request("b"), request("w", adminAccess=True)],),
        2,
        ("resourceClaims c0, matchAttribute",),
        [{"requests": ["a", "w"], "matchAttribute": "pcieRoot"}],
    ),
    "one GPU of one switch": Case(([request()],), 1, (), [{"matchAttribute": "pcieRoot"}]),
    "a GPU and a card of one switch": Case(
        ([request(), request("n", "nic")],),
        1,
        (),
        [{"requests": ["r", "n"], "matchAttribute": "pcieRoot"}],
    ),
    "two GPUs and a card of one switch": Case(
        ([request("n", "nic"), request(), request("s")],),
        2,
        (),
        [{"matchAttribute": "pcieRoot"}, {"requests": ["r", "s"], "matchAttribute": "numaNode"}],
        agreed=("numaNode", "pcieRoot"),
    ),
    "one of two GPUs and a card of one switch": Case(
        ([request(), request("s"), request("n", "nic")],),
        2,
        ("resourceClaims c0, matchAttribute is",),
        [{"requests": ["r", "n"], "matchAttribute": "pcieRoot"}],
    ),
    "each of two GPUs and a card of one switch": Case(
        ([request(), request("n", "nic")], [request(), request("n", "nic")]),
        2,
        ("resourceClaims c0, matchAttribute is", "resourceClaims c1, matchAttribute is"),
        [{"matchAttribute": "pcieRoot"}],
    ),
    "a GPU and a card of different switches": Case(
        ([request(), request("n", "nic")],), 1, ("distinctAttribute",), [{"distinctAttribute": "pcieRoot"}]
    ),
    "a GPU of one subrequest and a card": Case(
        ([first_available("gpu", "big-gpu"), request("n", "nic")],),
        1,
        ("matchAttribute of r/gpu",),
        [{"requests": ["r/gpu", "n"], "matchAttribute": "pcieRoot"}],
    ),
    "two cards of one switch": Case(
        ([request(), request("n", "nic", count=2)],),
        1,
        (),
        [{"requests": ["n"], "matchAttribute": "pcieRoot"}],
    ),
    "different models": Case(
        ([request(count=2)],), 2, ("distinctAttribute",), [{"distinctAttribute": "model"}]
    ),
    "a claim that pods share": Case(([request()],), 1, ("resourceClaimTemplateName",), shared=True),
    "another driver's claim that pods share": Case(([request(device_class="nic")],), shared=True),
    "two resources": Case(
        ([request(), request("o", "other-gpu")],),
        1,
        ("GPUs of one resource in a pod",),
        resource="nvidia.com/gpu",
    ),
    "resources too": Case(([request()],), 2, ("by resources or by claims",), limits={"nvidia.com/gpu": 2}),
    "resources, and another driver's claim": Case(
        ([request(device_class="nic")],), 2, (), limits={"nvidia.com/gpu": 2}
    ),
    "none at all": Case(([],)),
}


def create_claims(case: Case, roundings: Callable[[], Collection[tuple[str, Rounding]]] = tuple) -> Claims:
    claims = Claims(lambda name: CLASSES.get(name, ""), roundings)
    for number, requests in enumerate(case.claims):
        spec = {"devices": {"requests": requests, "constraints": case.constraints}}
        assert claims.see(f"ns/made-{number}", msgspec.convert(spec, ResourceClaimSpec))
    return claims


def read(case: Case, claims: Claims | None, are_made: bool = True, **more: Any) -> Pod:
    numbers = range(len(case.claims))
    entries = [
        {"name": f"c{n}", **({"resourceClaimName": f"made-{n}"} if case.shared else {})} for n in numbers
    ]
    statuses = [{"name": f"c{n}", "resourceClaimName": f"made-{n}"} for n in numbers if are_made]
    obj = pod_object(labels=GANG, limits=case.limits, spec={"resourceClaims": entries}, **more)
    status = msgspec.convert({"resourceClaimStatuses": statuses}, type(obj.status))
    return pods.read(msgspec.structs.replace(obj, status=status), claims=claims)


@pytest.mark.parametrize("name", CASES)
def test_what_claims_ask_for(name: str) -> None:
    case = CASES[name]
    pod = read(case, create_claims(case))
    sentences = [str(cause) for cause in pod.causes]
    assert len(sentences) == len(case.causes), sentences
    assert [part in text for part, text in zip(case.causes, sentences, strict=True)] == [True] * len(
        sentences
    )
    assert (pod.gpus, pod.gpu_resource) == (case.gpus, case.resource if case.gpus else "")
    assert pod.gpu_counts == case.counts
    assert pod.match_attributes == case.agreed
    assert pod.several_claims == (len(case.claims) > 1 and all(case.claims))
    assert pod.device_claims
    assert not pod.gated


@pytest.mark.parametrize(
    ("fields", "gpus", "read_as"),
    [
        (counted_out(1, 2), [0, 3], (2, 0b1001)),
        (counted_out(1, 2), [3], (1, 0b1000)),
        (counted_out(1, 2), [0, 1, 2], (1, None)),
        (request(allocationMode="All"), [0, 1, 2], (3, 0b0111)),
        (request(allocationMode="All"), [], (1, None)),
        (request(allocationMode="All"), [1, 1], (1, None)),
        (request(count=2), [0, 1, 2], (2, None)),
    ],
)
def test_a_bound_pod_has_the_gpus_that_its_binding_names(
    fields: dict[str, Any], gpus: list[int], read_as: tuple[int, int | None]
) -> None:
    """As many as one of its subrequests asks for."""
    case = Case(([fields],))
    annotations = {ALLOCATION: json.dumps({"version": 1, "gpus": gpus})}
    pod = read(case, create_claims(case), node="n", annotations=annotations)
    assert (pod.gpus, pod.allocation) == read_as
    assert pod.fewest_gpus == read(case, create_claims(case)).gpus


def test_a_pod_whose_claim_is_not_made_yet_is_no_member_yet() -> None:
    case = CASES["four GPUs"]
    assert read(case, create_claims(case), are_made=False).gated
    empty = Claims(lambda name: "")
    assert read(case, empty).gated
    assert not read(case, empty, node="n").gated


def test_a_claim_that_the_pod_does_not_need() -> None:
    """The claims controller says so with a status without a name."""
    obj = pod_object(labels=GANG, spec={"resourceClaims": [{"name": "c"}]})
    status = msgspec.convert({"resourceClaimStatuses": [{"name": "c"}]}, type(obj.status))
    obj = msgspec.structs.replace(obj, status=status)
    assert [claim.key for claim in claims_of(obj)] == [None]
    assert not pods.read(obj, claims=Claims(lambda name: "")).gated


def test_a_pod_with_thousands_of_claims_is_refused() -> None:
    case = Case(tuple([request()] for _ in range(MAX_CLAIMS + 1)))
    (cause,) = read(case, create_claims(case)).causes
    assert "at most 32 claims" in str(cause)


def test_of_a_thousand_causes_the_first_few_are_kept() -> None:
    unplanned = [request(f"r{number}", allocationMode="x") for number in range(32)]
    case = Case(tuple(unplanned for _ in range(MAX_CLAIMS)))
    causes = read(case, create_claims(case)).causes
    assert len(causes) == MAX_CAUSES
    assert "resourceClaims c0, request r0" in str(causes[0])


CHANNEL = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": "u"}
CONFIGS: dict[str, tuple[Any, str]] = {
    "a channel": ({"driver": "compute-domain.nvidia.com", "parameters": CHANNEL}, "u"),
    "of another driver": ({"driver": "gpu.nvidia.com", "parameters": CHANNEL}, ""),
    "the daemon's own": (
        {
            "driver": "compute-domain.nvidia.com",
            "parameters": CHANNEL | {"kind": "ComputeDomainDaemonConfig"},
        },
        "",
    ),
    "no UID": ({"driver": "compute-domain.nvidia.com", "parameters": CHANNEL | {"domainID": 7}}, ""),
    "a UID that is none": (
        {"driver": "compute-domain.nvidia.com", "parameters": CHANNEL | {"domainID": "u" * 65}},
        "",
    ),
    "no object": ({"driver": "compute-domain.nvidia.com", "parameters": ["channel"]}, ""),
    "nothing": (None, ""),
}


@pytest.mark.parametrize(("opaque", "domain"), CONFIGS.values(), ids=CONFIGS)
def test_a_channel_tells_its_compute_domain(opaque: Any, domain: str) -> None:
    claims = Claims(lambda name: CLASSES.get(name, ""))
    config = [{"requests": ["r"], "opaque": opaque}] if opaque is not None else [{}]
    spec = {"devices": {"requests": [request(device_class="channel")], "config": config}}
    claims.see("ns/made", msgspec.convert(spec, ResourceClaimSpec))
    of_pod = {"resourceClaims": [{"name": "c", "resourceClaimName": "made"}]}
    pod = pods.read(pod_object(labels=GANG, spec=of_pod), claims=claims)
    assert (pod.compute_domain, pod.gpus, pod.gated, pod.causes) == (domain, 0, False, ())


def test_a_pod_without_a_gang_is_left_to_kube_scheduler() -> None:
    claims = create_claims(CASES["one GPU"])
    obj = pod_object(spec={"resourceClaims": [{"name": "c", "resourceClaimName": "made-0"}]})
    pod = pods.read(obj, claims=claims)
    assert (pod.claim, pod.gpus, pod.causes) == (None, 0, ())


def test_a_claim_of_several_pods_that_has_no_devices_yet() -> None:
    case = Case(([request(device_class="nic")], [request(device_class="nic")]), shared=True)
    claims = create_claims(case)
    assert read(case, claims).unallocated_claims == ()
    spec = msgspec.convert({"devices": {"requests": case.claims[0]}}, ResourceClaimSpec)
    assert claims.see("ns/made-0", spec, unallocated=True)
    assert not claims.see("ns/made-0", spec, unallocated=True)
    assert read(case, claims).unallocated_claims == ("made-0",)
    assert claims.see("ns/made-0", spec)
    assert read(case, claims).unallocated_claims == ()


def test_a_claim_that_pods_share_and_that_has_its_devices_asks_for_no_more() -> None:
    case = Case(([request(count=2)], [request()]), constraints=[{"matchAttribute": "pcieRoot"}], shared=True)
    claims = create_claims(case)
    assert len(read(case, claims).causes) == 3
    specs = [
        msgspec.convert({"devices": {"requests": requests}}, ResourceClaimSpec) for requests in case.claims
    ]
    assert claims.see("ns/made-0", specs[0], unallocated=False)
    assert not claims.see("ns/made-0", specs[0], unallocated=False)
    assert claims.see("ns/made-1", specs[1], unallocated=False)
    pod = read(case, claims)
    assert (pod.gpus, pod.causes, pod.match_attributes, pod.device_claims) == (0, (), (), True)
    assert claims.see("ns/made-1", specs[1], unallocated=True)
    (cause,) = read(case, claims).causes
    assert "resourceClaims c1, request r" in str(cause)


def test_a_claim_that_says_nothing_new() -> None:
    case = CASES["four GPUs"]
    claims = create_claims(case)
    spec = msgspec.convert({"devices": {"requests": case.claims[0]}}, ResourceClaimSpec)
    assert not claims.see("ns/made-0", spec)
    assert claims.see("ns/made-0", None)


# --- claims of a PodGroup ---------------------------------------------------------------------------

SHARED_GPUS = {"devices": {"requests": [request(count=2)]}}


def sharer(
    name: str, node: str = "", phase: str = "Pending", claims: Sequence[str] = ("c",), **more: Any
) -> Any:
    """A pod of the PodGroup g that names the claims of its PodGroup."""
    entries = [{"name": claim, "resourceClaimTemplateName": "t"} for claim in claims]
    statuses = [{"name": claim, "resourceClaimName": f"g-{claim}"} for claim in claims]
    spec = {"resourceClaims": entries, "schedulingGroup": {"podGroupName": "g"}}
    obj = pod_object(name=name, uid=name, node=node, spec=spec, **more)
    status = msgspec.convert({"resourceClaimStatuses": statuses, "phase": phase}, type(obj.status))
    return msgspec.structs.replace(obj, status=status)


def claims_of_group(spec: dict[str, Any] | None = None, *names: str) -> Claims:
    claims = Claims(lambda name: CLASSES.get(name, ""))
    for name in names or ("c",):
        claims.see(f"ns/g-{name}", msgspec.convert(spec or SHARED_GPUS, ResourceClaimSpec), group="g")
    return claims


def holder_after(*seen: PodObject | str) -> str:
    """The pod that requests the claim's GPUs after these changes: objects of pods, or names of gone pods."""
    claims, objects = claims_of_group(), dict[str, PodObject | None]()
    for change in seen:
        name = change if isinstance(change, str) else change.metadata.name
        objects[name] = None if isinstance(change, str) else change
        claims.see_pod(name, objects[name])
    live = {name: pods.read(obj, claims=claims) for name, obj in objects.items() if obj is not None}
    assert all(pod.group_claims == ("g-c",) for pod in live.values())
    return " ".join(name for name, pod in live.items() if pod.gpus == 2)


NAMED: dict[str, Any] = {"annotations": {ALLOCATION: json.dumps({"version": 1, "gpus": [0, 1]})}}
HOLDERS: dict[str, tuple[list[PodObject | str], str]] = {
    "the first that comes": ([sharer("b"), sharer("a")], "b"),
    "it stays when it is bound": ([sharer("b"), sharer("a"), sharer("b", "n", **NAMED)], "b"),
    "a bound pod before one that waits": ([sharer("a"), sharer("b", "n")], "b"),
    "the pod with the devices before other bound ones": (
        [sharer("a", "n"), sharer("b", "n", **NAMED), sharer("c")],
        "b",
    ),
    "the next one when it is gone": ([sharer("a"), sharer("b"), "a"], "b"),
    "the next one when it has ended": (
        [sharer("a", "n", **NAMED), sharer("b", "n"), sharer("a", "n", "Succeeded", **NAMED)],
        "b",
    ),
}


@pytest.mark.parametrize(("seen", "holder"), HOLDERS.values(), ids=HOLDERS)
def test_the_gpus_of_a_claim_of_the_podgroup_count_for_one_pod(
    seen: list[PodObject | str], holder: str
) -> None:
    assert holder_after(*seen) == holder


def test_new_holders_are_told_once() -> None:
    claims = claims_of_group()
    assert claims.see_pod("a", sharer("a")) == [NewHolder("ns/g-c", "", "a")]
    assert claims.see_pod("a", sharer("a")) == claims.see_pod("b", sharer("b")) == []
    assert claims.see_pod("a", None) == [NewHolder("ns/g-c", "a", "b")]
    assert claims.see_pod("b", None) == [NewHolder("ns/g-c", "b", "")]
    assert claims.holder_of("ns/g-c") == claims.holder_of("ns/other") == ""


def test_an_unchanged_pod_compares_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = claims_of_group()
    for number in range(100):
        claims.see_pod(f"p{number}", sharer(f"p{number}"))
    comparisons: list[str] = []

    def compare(place: sharers._Place, other: sharers._Place) -> bool:
        comparisons.append(place.name)
        return (place.turn, place.created, place.name) < (other.turn, other.created, other.name)

    monkeypatch.setattr(sharers._Place, "__lt__", compare)
    assert claims.see_pod("p5", sharer("p5", labels={"a": "b"})) == []
    assert not comparisons
    assert claims.see_pod("p0", None) == [NewHolder("ns/g-c", "p0", "p1")]
    assert len(comparisons) < 20


def test_a_static_pod_holds_no_claim() -> None:
    claims = claims_of_group()
    node = OwnerReference(kind="Node", name="n", controller=True)
    obj = sharer("static", "n", annotations={MIRROR: "1"})
    metadata = msgspec.structs.replace(obj.metadata, owner_references=[node])
    static_pod = msgspec.structs.replace(obj, metadata=metadata)
    assert static_pod.is_static
    claims.see_pod("a", sharer("a"))
    assert claims.see_pod("static", static_pod) == []
    assert claims.holder_of("ns/g-c") == "a"


def test_a_claim_of_another_podgroup_or_of_a_pod_is_not_shared() -> None:
    claims = Claims(lambda name: CLASSES.get(name, ""))
    for group in ("", "h"):
        claims.see("ns/g-c", msgspec.convert(SHARED_GPUS, ResourceClaimSpec), group=group)
        for name in ("a", "b"):
            claims.see_pod(name, sharer(name))
            pod = pods.read(sharer(name), claims=claims)
            assert (pod.gpus, pod.group_claims) == (2, ())


def test_devices_other_than_gpus_are_shared_too() -> None:
    claims = claims_of_group({"devices": {"requests": [request(device_class="nic")]}})
    for name in ("a", "b"):
        claims.see_pod(name, sharer(name))
        pod = pods.read(sharer(name), claims=claims)
        assert (pod.gpus, pod.group_claims, pod.causes, pod.device_claims) == (0, ("g-c",), (), True)


def test_gpus_of_the_podgroup_and_of_the_pod_are_refused() -> None:
    claims = claims_of_group()
    claims.see("ns/g-own", msgspec.convert(SHARED_GPUS, ResourceClaimSpec))
    for name in ("a", "b"):
        obj = sharer(name, claims=("c", "own"))
        claims.see_pod(name, obj)
        (cause,) = pods.read(obj, claims=claims).causes
        assert 'resourceClaims is "c, own", expected GPUs of claims of the PodGroup alone' in str(cause)
