"""Causes of gangs for which there may be enough capacity, but not at the places that their rules allow.

`members_fit` of `members_needed` fit; None if the search for the greatest number did not end.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.node import is_state_taint
from muster.domain.reasons import Cause
from muster.domain.request import Scope
from muster.domain.words import (
    WHO_TELLS,
    counted_noun,
    if_empty,
    of_role,
    or_wait,
    plural,
    plural_verb,
    so_many_fit,
    the_role,
)


@dataclass(frozen=True, slots=True)
class DomainTooSmall(Cause):
    """No part of the required scope holds all members. The best part holds `members_fit`. If no part holds
    any, it is the part with most free capacity. `role`: "" if all roles of the gang are meant."""

    scope: str
    best: str
    members_fit: int | None
    members_needed: int
    has_nvlink: bool = True
    """False when the scope is an nvlink-domain and the best part is a GPU without NVLink."""
    even_empty: bool = False
    """Whether this holds even if nothing else ran there. Then `members_fit` is counted on empty nodes."""
    role: str = ""
    links_known: bool = True
    """False when the best part is a GPU of a node without a known link: it may have NVLink."""

    def __str__(self) -> str:
        unknown = f"; no links of its node are known: {WHO_TELLS}"
        why = "; its node has no NVLink" if self.links_known else unknown
        return f"{_none_holds_clause(self)}{'' if self.has_nvlink else why}"

    @property
    def advice(self) -> str:
        return _scope_advice(self)


@dataclass(frozen=True, slots=True)
class RoleScope(Cause):
    """All members of a role must lie in one part of the role's scope. The best part holds `members_fit`
    members. If this is all of them, the part does not leave enough for the other roles."""

    role: str
    scope: str
    best: str
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        if self.members_fit is None or self.members_fit < self.members_needed:
            return _none_holds_clause(self)
        must = f"{_all_members(self.members_needed)}{of_role(self.role)} must lie in one {self.scope}"
        return f"{must}, and no one holds them beside the other roles"

    @property
    def advice(self) -> str:
        return _scope_advice(self)


@dataclass(frozen=True, slots=True)
class NoSuchDomain(Cause):
    """No node that admits the gang lies in any part of the required scope."""

    scope: str
    role: str = ""
    labels: tuple[str, ...] = ()
    """The node labels that name the parts of the scope, if no node of the cluster has any of these labels;
    else ()."""
    meant: str = ""
    """The scope that was probably meant, if no node has the labels; "" if there is none."""
    preset: str = ""
    """The preset of levels that knows this scope by the label `preset_label`, which is on nodes; "" if there
    is none."""
    preset_label: str = ""
    stays = True

    def __str__(self) -> str:
        if not self.labels:
            must = f"{the_role(self.role)} must lie in one {self.scope}"
            return f"{must}, and no node that admits it lies in any"
        labels = f"{plural('label', len(self.labels))} {' or '.join(self.labels)}"
        hint = f"; did you mean {self.meant}?" if self.meant else ""
        if not self.meant and self.labels != (self.scope,):
            hint = "; the policies can name another label (docs/policies.md)"
        hint = told_by_preset(self.preset, self.preset_label) or hint
        return f"no node carries the {labels}, which scope {self.scope}{of_role(self.role)} needs{hint}"

    @property
    def advice(self) -> str:
        label = f" with {' or '.join(self.labels)}" if self.labels else ""
        if self.preset:
            return f"Set `preset: {self.preset}` in the policies: {self.preset_label} is its {self.scope}."
        if self.meant:
            return f"Require scope {self.meant} in place of {self.scope}, or label the nodes{label}."
        if not self.labels:
            admit = f"Let nodes that lie in one {self.scope} admit {the_role(self.role)}"
            return f"{admit}, or require another scope than {self.scope}."
        return f"Label the nodes{label}, or require another scope than {self.scope}."


@dataclass(frozen=True, slots=True)
class IndicesUnknown(Cause):
    """Pods on the nodes that admit the gang hold GPUs of unknown index. So no part inside a node can be
    promised.

    `role`: "" if the gang or several of its roles ask for the scope. `scope`: "" if the GPUs of these nodes
    can't be shared for this reason.
    """

    scope: str
    nodes: int
    role: str = ""

    def __str__(self) -> str:
        nodes, whom = counted_noun("node", self.nodes), f" to {the_role(self.role)}" if self.role else ""
        if not self.scope:
            return f"no GPU of {nodes} can be shared: pods there have GPUs and do not say which"
        return f"no one {self.scope} can be promised{whom}: on {nodes}, pods have GPUs and do not say which"

    @property
    def advice(self) -> str:
        return f"Wait until those pods end{f', or only prefer {self.scope}' if self.scope else ''}."


@dataclass(frozen=True, slots=True)
class SegmentsTooLarge(Cause):
    """A role comes in segments, each in one part of a scope: `segments` are (members, scope), widest first.
    With these segments only `members_fit` members of the gang fit."""

    role: str
    segments: tuple[tuple[int, str], ...]
    members_fit: int | None
    members_needed: int
    even_empty: bool = False

    def __str__(self) -> str:
        sizes = ", each of ".join(f"{size} in one {scope}" for size, scope in self.segments)
        must = f"members of {the_role(self.role)} must lie by segments of {sizes}"
        return f"{must}{so_many_fit(self.members_fit, self.members_needed, self.even_empty)}"

    @property
    def advice(self) -> str:
        wait = or_wait(f"more is free in one {self.segments[-1][1]}", self.even_empty)
        return f"Make the segments smaller, or their scope wider{wait}."


IN_SEVERAL_CLAIMS = "each of several claims has only some of them"
"""The end of a reason if the GPUs of a member are no partition because several claims have them."""
_AGAIN = "Start the whole gang again, so that all its members are placed together"


@dataclass(frozen=True, slots=True)
class RunningElsewhere(Cause):
    """The other members must lie in the part of a scope where running members lie. `part` is "" if running
    members lie in several parts, or in an unknown part."""

    scope: str
    part: str
    running: int

    def __str__(self) -> str:
        runs = f"{counted_noun('member', self.running)} {plural_verb('run', self.running)} already"
        pronoun, article = ("it", "any") if self.running == 1 else ("them", "one")
        if self.part:
            return f"{runs} {place_in_words(self.scope, self.part)}, and the others must join {pronoun}"
        if self.scope in (Scope.GPU, Scope.NVLINK_DOMAIN):
            return f"{runs}, nobody knows in which one {self.scope}, and the others must join {pronoun}"
        return f"{runs}, and not in {article} {self.scope}, where the others must join {pronoun}"

    @property
    def advice(self) -> str:
        if self.part:
            again = f"{_AGAIN[:1].lower()}{_AGAIN[1:]}"
            return f"Wait until more is free {place_in_words(self.scope, self.part)}, or {again}."
        return self.advice_if_empty

    @property
    def advice_if_empty(self) -> str:
        return f"{_AGAIN}, or only prefer {self.scope}."


@dataclass(frozen=True, slots=True)
class NodesExcluded(Cause):
    """Nodes have room, but do not admit the role. `by` is a selector term, a taint, "cordoned", "not ready",
    a partition of GPUs, or the plugin that refused the nodes."""

    role: str
    by: str
    nodes: int

    def __str__(self) -> str:
        not_admit = f"{'does' if self.nodes == 1 else 'do'} not admit"
        return f"{counted_noun('node', self.nodes)} {not_admit} {the_role(self.role)}: {self.by}"

    @property
    def advice(self) -> str:
        nodes, role, rule = counted_noun("node", self.nodes), the_role(self.role), self.by
        kind, _, detail = rule.partition(" ")
        match kind:
            case "cordoned":
                return f"Uncordon {nodes}." if self.nodes == 1 else f"Uncordon some of {nodes}."
            case "not" if detail == "ready":
                unready = "it is" if self.nodes == 1 else "they are"
                return f"Make {nodes} ready: `kubectl describe node` says why {unready} not."
            case "taint":
                return _without_taint(detail, nodes, role)
            case "selector" | "affinity":
                return f"Remove the {rule} from the pods of {role}, or label {nodes} so that it admits them."
            case "partition":
                return _partition_advice(detail, nodes)
        return f"Change what the plugin refuses, on {nodes} or in the pods of {role}: {rule}."


def _without_taint(taint: str, nodes: str, role: str) -> str:
    """Return the advice against a taint. A taint that shows a node's state needs a repair of the node."""
    if is_state_taint(taint):
        mend = f"Mend what causes taint {taint} on {nodes}: `kubectl describe node` says more"
        return f"{mend}. A toleration does not help."
    return f"Give the pods of {role} a toleration of {taint}, or remove this taint from {nodes}."


def _partition_advice(detail: str, nodes: str) -> str:
    """Return the advice for GPUs that are no partition of their node: how to ask for a partition."""
    _, has_attribute, attribute = detail.partition("matchAttribute ")
    if has_attribute:
        return f"Ask for these GPUs by a claim with matchAttribute {attribute}."
    if detail.endswith(IN_SEVERAL_CLAIMS):
        return "Ask for these GPUs by one claim."
    return f"Ask for as many GPUs in a pod as a partition of {nodes} has."


@dataclass(frozen=True, slots=True)
class GpusNotMatching(Cause):
    """The claims of members match only `matching` of the `gpus` GPUs of these nodes. The other GPUs do not
    count.

    On `differing` of the nodes, roles match different GPUs, so no member is planned there. `each` > 0: a
    member takes all matching GPUs of its node, and each of the nodes has this number.
    """

    nodes: int
    matching: int
    gpus: int
    differing: int = 0
    each: int = 0

    def __str__(self) -> str:
        if self.each:
            share = f"{counted_noun('GPU', self.each)} on {counted_noun('node', self.nodes)}"
            return f"by allocationMode All each member takes all GPUs that match: {share}"
        matches = (
            f"on {counted_noun('node', self.nodes)} resourceClaims match {self.matching} of {self.gpus} GPUs"
        )
        if not self.differing:
            return matches
        return f"{matches}; on {self.differing} of them roles match different GPUs, which is not planned yet"

    @property
    def advice(self) -> str:
        if self.each:
            return "Ask with selectors that match as many GPUs on more nodes, or for a number of GPUs."
        or_own_gangs = ", or make each role a gang of its own" if self.differing else ""
        return f"Ask with selectors that more GPUs match{or_own_gangs}."


def told_by_preset(preset: str, label: str) -> str:
    """Return a clause about the preset that knows a label of nodes; "" if there is none."""
    return (
        f"; nodes carry {label}: set `preset: {preset}` in the policies (docs/policies.md)" if preset else ""
    )


def place_in_words(scope: str, part: str) -> str:
    """Return the phrase for a place in this part of the scope: "in rack r1", "on node a"."""
    return f"{'on' if scope in (Scope.NODE, Scope.GPU) else 'in'} {scope} {part}"


def _none_holds_clause(cause: DomainTooSmall | RoleScope) -> str:
    """Return the clause that no part of the scope holds all members, with the best part if this is known."""
    members, fit = f"{_all_members(cause.members_needed)}{of_role(cause.role)}", cause.members_fit
    best_domain = "" if fit is None or not cause.best else f": the best, {cause.best}, holds {fit}"
    return f"no one {cause.scope} holds {members}{if_empty(cause.even_empty)}{best_domain}"


def _scope_advice(cause: DomainTooSmall | RoleScope) -> str:
    """Return the advice to require a wider scope, or to wait if waiting may help."""
    wait = or_wait(f"more is free in one {cause.scope}", cause.even_empty)
    return f"Require a wider scope than {cause.scope}, or only prefer {cause.scope}{wait}."


def _all_members(count: int) -> str:
    return f"all {count} members" if count > 1 else "the one member"
