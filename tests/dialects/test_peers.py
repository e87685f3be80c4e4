"""What pods say about other pods: terms, selectors, ports and claims, and what is left out or refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.dialects.objects import PodAffinityTerm
from muster.dialects.pods import peers
from muster.dialects.pods.pods import read
from muster.domain.causes.ill_formed import BadValue
from muster.domain.peers import (
    NO_PEER_RULES,
    HostPort,
    PeerRules,
    PeerTerm,
    Selector,
    SpreadTerm,
    matches,
    selector_words,
)
from muster.domain.request import SelectorTerm
from tests.dialects.objects import pod_object

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
GPU = {"nvidia.com/gpu": 1}
WEB = {"matchLabels": {"app": "web"}}
IS_WEB = (SelectorTerm("app", "In", ("web",)),)


def term(selector: Any = WEB, key: str = HOST, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": selector, **more}


def affinity(*terms: dict[str, Any], kind: str = "podAntiAffinity") -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def spread(selector: Any = WEB, **more: Any) -> dict[str, Any]:
    constraint = {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    return {"topologySpreadConstraints": [{**constraint, **more}]}


def container(*ports: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "main", "ports": list(ports), **more}


OWN_NAMESPACE = ("ns",)
CASES: dict[str, tuple[dict[str, Any], PeerRules]] = {
    "nothing": ({}, NO_PEER_RULES),
    "anti-affinity": (affinity(term()), PeerRules(anti_affinity=(PeerTerm(HOST, IS_WEB, OWN_NAMESPACE),))),
    "affinity of two terms": (
        affinity(term(), term(key=ZONE), kind="podAffinity"),
        PeerRules(affinity=(PeerTerm(HOST, IS_WEB, OWN_NAMESPACE), PeerTerm(ZONE, IS_WEB, OWN_NAMESPACE))),
    ),
    "other namespaces": (
        affinity(term(namespaces=["b", "a"])),
        PeerRules(anti_affinity=(PeerTerm(HOST, IS_WEB, ("a", "b")),)),
    ),
    "all namespaces": (
        affinity(term(namespaceSelector={})),
        PeerRules(anti_affinity=(PeerTerm(HOST, IS_WEB, (), ()),)),
    ),
    "namespaces by label, and one by name": (
        affinity(term(namespaces=["a"], namespaceSelector=WEB)),
        PeerRules(anti_affinity=(PeerTerm(HOST, IS_WEB, ("a",), IS_WEB),)),
    ),
    "no selector matches no pod": (
        affinity(term(None)),
        PeerRules(anti_affinity=(PeerTerm(HOST, None, OWN_NAMESPACE),)),
    ),
    "an empty selector matches all": (
        affinity(term({})),
        PeerRules(anti_affinity=(PeerTerm(HOST, (), OWN_NAMESPACE),)),
    ),
    "expressions": (
        affinity(
            term(
                {
                    "matchLabels": {"b": "2", "a": "1"},
                    "matchExpressions": [
                        {"key": "app", "operator": "NotIn", "values": ["y", "x", "y"]},
                        {"key": "old", "operator": "DoesNotExist"},
                        {"key": "new", "operator": "Exists"},
                    ],
                }
            )
        ),
        PeerRules(
            anti_affinity=(
                PeerTerm(
                    HOST,
                    (
                        SelectorTerm("a", "In", ("1",)),
                        SelectorTerm("b", "In", ("2",)),
                        SelectorTerm("app", "NotIn", ("x", "y")),
                        SelectorTerm("old", "DoesNotExist"),
                        SelectorTerm("new", "Exists"),
                    ),
                    OWN_NAMESPACE,
                ),
            )
        ),
    ),
    "a preference": (
        {
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": term()}
                    ]
                }
            }
        },
        NO_PEER_RULES,
    ),
    "spread": (spread(), PeerRules(spread=(SpreadTerm(ZONE, IS_WEB),))),
    "spread with all that it can say": (
        spread(maxSkew=3, minDomains=2, nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor"),
        PeerRules(spread=(SpreadTerm(ZONE, IS_WEB, 3, 2, honor_affinity=False, honor_taints=True),)),
    ),
    "spread of the pod's own revision": (
        spread(matchLabelKeys=["rev", "none"]),
        PeerRules(spread=(SpreadTerm(ZONE, (*IS_WEB, SelectorTerm("rev", "In", ("7",)))),)),
    ),
    "spread without a selector": (
        spread(None, matchLabelKeys=["rev"]),
        PeerRules(spread=(SpreadTerm(ZONE, None),)),
    ),
    "spread that is a preference": (spread(whenUnsatisfiable="ScheduleAnyway"), NO_PEER_RULES),
    "ports of containers and sidecars": (
        {
            "containers": [
                container({"containerPort": 80}, {"containerPort": 80, "hostPort": 8080}),
            ],
            "initContainers": [
                container({"containerPort": 1, "hostPort": 1}, name="init"),
                container(
                    {"containerPort": 2, "hostPort": 2, "protocol": "UDP", "hostIP": "10.0.0.1"},
                    name="side",
                    restartPolicy="Always",
                ),
            ],
        },
        PeerRules(host_ports=(HostPort(2, "UDP", "10.0.0.1"), HostPort(8080))),
    ),
    "ports of a pod on the host's network": (
        {"hostNetwork": True, "containers": [container({"containerPort": 80})]},
        PeerRules(host_ports=(HostPort(80),)),
    ),
    "claims": (
        {
            "volumes": [
                {"name": "z", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            ]
        },
        PeerRules(volume_claims=("data", "p-scratch")),
    ),
    "more terms than are planned": (affinity(*[term()] * (peers.MAX_TERMS + 1)), NO_PEER_RULES),
    "more values than are planned": (
        affinity(
            term({"matchExpressions": [{"key": "a", "operator": "In", "values": [*map(str, range(1000))]}]}),
            term(),
        ),
        PeerRules(anti_affinity=(PeerTerm(HOST, IS_WEB, OWN_NAMESPACE),)),
    ),
    "more requirements than are planned": (
        spread({"matchLabels": {f"k{i}": "v" for i in range(100)}}),
        NO_PEER_RULES,
    ),
}


@pytest.mark.parametrize(("spec", "rules"), CASES.values(), ids=CASES)
def test_what_a_pod_says_about_others(spec: dict[str, Any], rules: PeerRules) -> None:
    pod = read(pod_object(labels={"rev": "7"}, spec=spec, scheduler="default-scheduler"))
    assert pod.peers == rules
    assert pod.labels == (("rev", "7"),)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "an operator of nodes": (
        affinity(term({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]})),
        "podAntiAffinity: labelSelector.matchExpressions: operator",
    ),
    "In without values": (
        affinity(term({"matchExpressions": [{"key": "a", "operator": "In"}]}), kind="podAffinity"),
        "podAffinity: labelSelector.matchExpressions: values",
    ),
    "no topology key": (affinity(term(key="")), "podAntiAffinity: topologyKey"),
    "no skew": (spread(maxSkew=0), "topologySpreadConstraints: maxSkew"),
    "no domains": (spread(minDomains=0), "topologySpreadConstraints: minDomains"),
}


@pytest.mark.parametrize(("spec", "field"), BROKEN.values(), ids=BROKEN)
def test_what_the_api_server_would_refuse_is_a_cause(spec: dict[str, Any], field: str) -> None:
    (cause,) = read(pod_object(limits=GPU, spec={**spec_of(), **spec})).causes
    assert isinstance(cause, BadValue)
    assert cause.field == field


@pytest.mark.parametrize(("spec", "field"), BROKEN.values(), ids=BROKEN)
def test_a_bound_pod_and_one_of_others_have_no_causes(spec: dict[str, Any], field: str) -> None:
    assert not read(pod_object(node="a", limits=GPU, spec={**spec_of(), **spec})).causes
    assert not read(pod_object(scheduler="default-scheduler", spec=spec)).causes


def spec_of() -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": GPU}}]}


def test_pods_of_one_template_share_what_they_say() -> None:
    objects = [
        read(
            pod_object(
                name=f"p{i}", uid=f"p{i}", labels={"app": "web"}, spec={**affinity(term()), **spread()}
            )
        )
        for i in range(2)
    ]
    assert objects[0].labels is objects[1].labels
    assert objects[0].peers is objects[1].peers


def test_the_api_server_puts_label_keys_into_the_selector() -> None:
    """As pkg/registry/core/pod/strategy_test.go has it, TestMutatePodAffinity."""
    labels = {"country": "Japan", "city": "Kyoto"}
    written = msgspec.convert(
        term(
            {"matchLabels": {"region": "Asia"}}, matchLabelKeys=["country", "no"], mismatchLabelKeys=["city"]
        ),
        PodAffinityTerm,
    )
    stored = peers.with_label_keys(written, labels)
    assert stored.label_selector is not None
    assert msgspec.to_builtins(stored.label_selector.match_expressions) == [
        {"key": "country", "operator": "In", "values": ["Japan"]},
        {"key": "city", "operator": "NotIn", "values": ["Kyoto"]},
    ]
    assert peers.with_label_keys(stored, {"country": "Peru"}) == stored
    without = msgspec.structs.replace(written, label_selector=None)
    assert peers.with_label_keys(without, labels) == without


MATCHES: dict[str, tuple[Selector, dict[str, str], bool]] = {
    "none": (None, {}, False),
    "all": ((), {}, True),
    "in": (IS_WEB, {"app": "web"}, True),
    "in, another": (IS_WEB, {"app": "db"}, False),
    "in, missing": (IS_WEB, {}, False),
    "not in": ((SelectorTerm("app", "NotIn", ("web",)),), {"app": "db"}, True),
    "not in, missing": ((SelectorTerm("app", "NotIn", ("web",)),), {}, True),
    "not in, there": ((SelectorTerm("app", "NotIn", ("web",)),), {"app": "web"}, False),
    "exists": ((SelectorTerm("app", "Exists"),), {"app": ""}, True),
    "exists, missing": ((SelectorTerm("app", "Exists"),), {}, False),
    "does not exist": ((SelectorTerm("app", "DoesNotExist"),), {}, True),
    "does not exist, there": ((SelectorTerm("app", "DoesNotExist"),), {"app": ""}, False),
    "all hold": ((*IS_WEB, SelectorTerm("a", "Exists")), {"app": "web"}, False),
    "another operator": ((SelectorTerm("app", "Gt", ("1",)),), {"app": "2"}, False),
}


@pytest.mark.parametrize(("selector", "labels", "expected"), MATCHES.values(), ids=MATCHES)
def test_which_labels_match(selector: Selector, labels: dict[str, str], expected: bool) -> None:
    assert matches(selector, labels) is expected


def test_selectors_in_words() -> None:
    sentences = (
        SelectorTerm("app", "In", ("web",)),
        SelectorTerm("tier", "In", ("a", "b", "c", "d", "e")),
        SelectorTerm("env", "NotIn", ("dev",)),
        SelectorTerm("x", "NotIn", ("1", "2")),
        SelectorTerm("new", "Exists"),
        SelectorTerm("old", "DoesNotExist"),
    )
    assert selector_words(sentences) == "app=web,tier in (a,b,c,d,…),env!=dev,x notin (1,2),new,!old"
    assert selector_words(()) == "all pods"
    assert selector_words(None) == "no pod"
    assert SpreadTerm(ZONE, IS_WEB, 2, 3).words == f"app=web by {ZONE}, maxSkew 2, minDomains 3"
