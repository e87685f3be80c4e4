"""What the model is made of: its nodes and gangs, a watch that can break off, Bindings on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from muster.domain.peers import PeerRules, PeerTerm, Selector, SpreadTerm
from muster.domain.pod import KUBERNETES, Pod
from muster.domain.request import SelectorTerm
from muster.gangs.messages import inputs
from muster.gangs.messages.instructions import PushVerdict
from tests.gangs.native_watch import LEAVES, NATIVE, NativeWatch, at
from tests.gangs.world import World

NODES = ("a", "b", "c")
GANGS = {
    "g": (2, 2), "h": (3, 2), "k": (2, 4), "o": (3, 1), "e": (2, 1), "p": (2, 1), NATIVE: (2, 1), "": (1, 3),
} | dict.fromkeys(LEAVES, (2, 1))  # fmt: skip
"""Name → (members, GPUs of each). e, p, n and PodGroups of a
tree are elastic and have at least this number; o has two owners."""
MAX_MEMBERS = {"e": 4, "p": 4, NATIVE: 4} | dict.fromkeys(LEAVES, 2)
POD_GROUP = "p"
"""The gang whose PodGroup, of KAI, states how many members it needs."""
VOLUMES = ("k", "e", "")
"""Gangs whose pods use volumes: in-tree plugins are asked about them."""
PREFERENCES = ("h", "e")
"""Gangs whose pods have preferences: they are asked about too."""
HOST, ZONE, HALL = "kubernetes.io/hostname", "zone", "example.com/hall"
ZONES = {"a": "east", "b": "east", "c": "west"}
APPS = ("web", "db")
"""Labels of other pods. The members of a gang have its name in the same label."""
PLAIN = 12
"""Number of choices without peer rules. Each shape of such rules is one more choice."""
T = TypeVar("T")


class Chooser(Protocol):
    """Where the randomness comes from."""

    def of(self, values: Sequence[T]) -> T: ...


@dataclass(frozen=True)
class Flying:
    """A Binding that the shim has sent, and the gang and index that it is of."""

    verdict: PushVerdict
    member: int
    on: str
    annotations: dict[str, str]

    @property
    def uid(self) -> str:
        return self.verdict.members[self.member][1]


def peer_rules(choose: Chooser, gang: str) -> PeerRules:
    """What the members of a gang may require about other pods, and about each other; most require nothing."""
    key, app = choose.of((HOST, ZONE)), choose.of(APPS)
    selector: Selector = (SelectorTerm("app", "In", (app,)),)
    members: Selector = (SelectorTerm("app", "In", (gang,)),)
    shapes = (
        PeerRules(affinity=(PeerTerm(key, selector, ("ns",)),)),
        PeerRules(affinity=(PeerTerm(key, members, ("ns",)),)),
        PeerRules(anti_affinity=(PeerTerm(key, selector, ("ns",)),)),
        PeerRules(anti_affinity=(PeerTerm(key, members, ("ns",)),)),
        PeerRules(anti_affinity=(PeerTerm(HOST, (SelectorTerm("app", "NotIn", (gang,)),), (), ()),)),
        PeerRules(spread=(SpreadTerm(key, members),)),
        PeerRules(spread=(SpreadTerm(key, selector),)),
    )
    return choose.of((PeerRules(),) * PLAIN + shapes)


class Broken(AssertionError):
    """Something that must hold does not."""


class Cut(World):
    """A world whose watch can be interrupted: what happened meanwhile is sent when it resumes.

    Pods that name a PodGroup of Kubernetes go through `native`.
    """

    missed: list[inputs.Input] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.native = NativeWatch(lambda message: super(Cut, self).send(at(message, self.now)))

    def send(self, message: inputs.Input) -> None:
        told_by_watch = isinstance(
            message, inputs.PodSeen | inputs.PodGone | inputs.NodeSeen | inputs.NodeGone
        )
        if self.missed is not None and told_by_watch:
            self.missed.append(message)
        elif isinstance(message, inputs.PodSeen) and names_native(message.pod):
            self.native.see_pod(message.pod)
        elif isinstance(message, inputs.PodGone) and message.uid.partition("-")[0] in (NATIVE, *LEAVES):
            self.native.forget_pod(message.uid)
        else:
            super().send(message)

    def goes_on(self) -> None:
        missed, self.missed = self.missed or [], None
        for event in missed:
            self.send(replace(event, now=self.now))


def names_native(pod: Pod) -> bool:
    """Return whether the pod names a PodGroup of Kubernetes."""
    return pod.claim is not None and pod.claim.dialect == KUBERNETES


class First:
    """Always the first choice."""

    def of(self, values: Sequence[T]) -> T:
        return values[0]
