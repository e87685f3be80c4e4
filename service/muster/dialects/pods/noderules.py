"""Which nodes a pod may go to: its node selector, required node affinity and tolerations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from muster.dialects.objects import NodeSelectorRequirement, NodeSelectorTerm, PodSpec
from muster.domain.request import NodeRules, SelectorTerm, Toleration

FIELD = "names and values in nodeSelector, nodeAffinity and tolerations"
MAX_NAMES = 1024
"""Names and values in the rules of one pod. One with more keeps no rules: if it waits, it is refused."""

V = TypeVar("V")


class Shared(Generic[V]):
    """One object for equal values: the thousands of pods of a template have the same rules.

    A value is forgotten with its last holder.
    """

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[V, ref[V]] = WeakKeyDictionary()

    def of(self, value: V) -> V:
        """Return the object that stands for all values equal to this one."""
        reference = self._values.get(value)
        shared = reference() if reference is not None else None
        if shared is None:
            shared = value
            self._values[value] = ref(value)
        return shared

    def __len__(self) -> int:
        return len(self._values)


_live = Shared[NodeRules]()
"""The rules of pods that are there."""


def read(spec: PodSpec) -> NodeRules:
    """Return the rules. Equal rules of pods that are there are one object."""
    if size(spec) > MAX_NAMES:
        return NodeRules()
    return _live.of(_rules(spec))


def size(spec: PodSpec) -> int:
    """Return how many names and values the rules have; of more than are read, some number above that."""
    count = len(spec.node_selector or ()) + len(spec.tolerations or ())
    for term in terms(spec):
        count += 1
        for requirement in _requirements(term):
            count += 1 + len(requirement.values or ())
            if count > MAX_NAMES:
                return count
        if count > MAX_NAMES:
            return count
    return count


def terms(spec: PodSpec) -> list[NodeSelectorTerm]:
    """Return the terms of the required node affinity, [] if there is none."""
    node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    selector = node_affinity.required if node_affinity is not None else None
    return (selector.node_selector_terms or []) if selector is not None else []


def _rules(spec: PodSpec) -> NodeRules:
    selector = sorted((spec.node_selector or {}).items())
    any_of = [
        tuple(SelectorTerm(rule.key, rule.operator, tuple(rule.values or ())) for rule in _requirements(term))
        for term in terms(spec)
    ]
    # In the API a term without requirements matches no node. It can't be dropped where it is the only one.
    matching = tuple(requirements for requirements in any_of if requirements)
    if any_of and not matching:
        matching = ((SelectorTerm("metadata.name", "In", ()),),)
    required = tuple(SelectorTerm(key, "In", (value,)) for key, value in selector)
    tolerations = spec.tolerations or ()
    tolerated = tuple(Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in tolerations)
    return NodeRules(required, matching, tolerated)


def _requirements(term: NodeSelectorTerm) -> Iterator[NodeSelectorRequirement]:
    return chain(term.match_expressions or (), term.match_fields or ())
