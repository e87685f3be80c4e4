"""Find the causes for which a gang is ill-formed, such as waiting pods that disagree on the gang or on a
role.

An absent value counts as a value: a constraint that only some members state is a disagreement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

from muster.domain.causes.ill_formed import BadValue, MembersDisagree, TooManyMembers, counted_once
from muster.domain.constraints import PER_SCOPE, PerScope
from muster.domain.pod import GangClaim, Pod
from muster.domain.policies import Policies
from muster.domain.reasons import Cause
from muster.domain.request import NodeRules, SelectorTerm
from muster.placement.cluster.candidates import term_text

MAX_CAUSES = 8
"""Largest number of causes of members that a gang reports: in a gang of thousands, all may have one
mistake."""
MAX_NAMES = 64 * 1024
"""Largest number of names and values in the node rules of a gang's waiting pods. Rules that several pods have
count once."""
_COUNT_EXPECTED = (
    'how many of its members must fit at once: add the annotation gpu.topology/min-member, as in "4", to each'
)
"""Expected of a gang without a number: such a gang must not begin with the pods that came first."""

Describe = Callable[[Pod], str]
"""Returns the value of one field of a pod, as text."""


def ill_formed(
    gang_title: str, present: int, unbound: tuple[Pod, ...], claims: Collection[GangClaim], policies: Policies
) -> tuple[Cause, ...]:
    """Return why the gang is ill-formed; () if it is not. Causes of bound pods do not count.

    `claims`: the different claims of the waiting pods.
    """
    causes = counted_once(cause for pod in unbound for cause in pod.causes)[:MAX_CAUSES]
    if not unbound or causes:
        return tuple(causes)
    # Members with one claim and no role cannot disagree, and there may be thousands.
    differing = disagreements(unbound) if len(claims) > 1 or unbound[0].topology_request.role else []
    causes.extend(
        _check_number_of_names(gang_title, unbound)
        or differing
        or _check_unallocated_claims(gang_title, unbound)
        or _check_group_claims(gang_title, unbound)
    )
    if causes:
        return tuple(causes)
    claim = claim_of(unbound[0])
    if unknown := policies.names_without_policy(claim.topology_request.policies):
        policy_names = ", ".join(policy.name for policy in policies.policies) or "none"
        causes.append(
            BadValue(gang_title, "topology policy", unknown[0], f"a policy of the cluster: {policy_names}")
        )
    if claim.min_member is None and claim.replicas is None and not claim.by_object:
        causes.append(BadValue(gang_title, "min-member", "", _COUNT_EXPECTED))
    if claim.replicas is not None and present > claim.replicas:
        causes.append(TooManyMembers(present, claim.replicas))
    return tuple(causes)


def disagreements(waiting: Iterable[Pod]) -> list[MembersDisagree]:
    """Return the first field on which the members of a gang, or of a named role, disagree; [] if none.

    Only one field is returned, because ACK's one label is both replicas and min-member.
    """
    pods = sorted(waiting, key=lambda pod: (pod.name, pod.uid))
    roles: dict[str, list[Pod]] = {}
    for pod in pods:
        roles.setdefault(pod.topology_request.role, []).append(pod)
    roles.pop("", None)  # pods without a role name may be of different roles
    checks = [(field, pods, describe) for field, describe in _GANG_FIELDS.items()]
    for role, members in sorted(roles.items()):
        checks += [(f"{field} of role {role}", members, describe) for field, describe in _ROLE_FIELDS.items()]
        if any(pod.topology_request.role_scope or pod.topology_request.segments for pod in members):
            # Pods with different requests are several roles, and each role would choose a domain of its own.
            checks += [
                (f"{field} of role {role}", members, describe) for field, describe in _REQUEST_FIELDS.items()
            ]
    return next(([cause] for cause in map(_disagreement, checks) if cause is not None), [])


def _check_number_of_names(gang_title: str, unbound: Iterable[Pod]) -> list[BadValue]:
    """Return a cause if the members' node rules have too many names and values; else [].

    Equal rules are one object, so the rules of one template count once.
    """
    distinct_rules = {id(pod.rules): pod.rules for pod in unbound}
    if sum(rules.size for rules in distinct_rules.values()) <= MAX_NAMES:
        return []
    field = "number of names and values in nodeSelector, nodeAffinity and tolerations of unlike members"
    return [BadValue(gang_title, field, f"more than {MAX_NAMES:,}", f"at most {MAX_NAMES:,}")]


def asked_of_gang(pod: Pod) -> tuple[str, ...]:
    """Return the pod's statements about its whole gang. All waiting members must agree on them."""
    return tuple(describe(pod) for describe in _GANG_FIELDS.values())


def _check_unallocated_claims(gang_title: str, unbound: tuple[Pod, ...]) -> list[BadValue]:
    """Return a cause if several members wait for the devices of one claim; else [].

    kube-scheduler allocates the claim for one pod, and refuses the others until this pod is bound. So the
    gang would never start.
    """
    times = Counter(name for pod in unbound for name in pod.unallocated_claims)
    for name, members in sorted(times.items()):
        if members > 1:
            expected = f"a claim that has its devices before the gang starts: {members} members name it"
            return [BadValue(gang_title, "resourceClaimName", name, expected)]
    return []


def _check_group_claims(gang_title: str, unbound: tuple[Pod, ...]) -> list[BadValue]:
    """Return a cause if members that share a claim of the PodGroup differ in such claims or in their roles;
    else [].

    Then all of them have one holder, and it is before them in the order in which members start.
    """
    first_with: dict[str, Pod] = {}
    for pod in unbound:
        for name in pod.group_claims:
            first = first_with.setdefault(name, pod)
            also = f"as other members that name ResourceClaim {name} have it"
            if first.group_claims != pod.group_claims:
                expected = f"{', '.join(first.group_claims)}, {also}"
                return [BadValue(gang_title, "resourceClaims", ", ".join(pod.group_claims), expected)]
            if first.topology_request.role != pod.topology_request.role:
                expected = f"{first.topology_request.role or 'none'}, {also}"
                return [BadValue(gang_title, "role", pod.topology_request.role, expected)]
    return []


def _disagreement(check: tuple[str, list[Pod], Describe]) -> MembersDisagree | None:
    """Return the disagreement of these pods on a field; None if they agree."""
    field, pods, describe = check
    values: dict[str, str] = {}
    for pod in pods:
        values.setdefault(describe(pod), pod.name)
    return MembersDisagree(field, tuple(sorted(values.items()))) if len(values) > 1 else None


def claim_of(pod: Pod) -> GangClaim:
    """Return the claim of a member of a gang."""
    assert pod.claim is not None
    return pod.claim


def _segments(pod: Pod) -> str:
    return ",".join(f"{segment.size} in one {segment.scope}" for segment in pod.topology_request.segments)


def _per_scope(kind: type[PerScope], pod: Pod) -> str:
    limits = (limit for limit in pod.topology_request.per_scope if isinstance(limit, kind))
    return ",".join(f"{limit.scope}={limit.members}" for limit in limits)


def _resources(pod: Pod) -> str:
    resources = pod.resources
    counts = " or ".join(str(count or "all matching") for count in pod.gpu_counts or (pod.gpus,))
    gpus = f"{counts if pod.gpus else 0} {pod.gpu_resource or 'GPUs'}"
    if pod.slice is not None:
        gpus = f"{pod.slice.units} GiB on each of {pod.slice.gpus} shared GPUs"
    other_amounts = "".join(f", {amount} {name}" for name, amount in resources.others)
    cpu, memory = f"{resources.cpu_milli / 1000:.12g} cpu", f"{_memory_text(resources.memory_bytes)} memory"
    return f"{gpus}, {cpu}, {memory}{other_amounts}"


def _memory_text(amount: int) -> str:
    """Return the amount without rounding: different amounts must give different text."""
    return f"{amount / 2**20:.17g}Mi" if amount % 2**30 else f"{amount // 2**30}Gi"


def _terms(terms: Iterable[SelectorTerm]) -> str:
    return " and ".join(map(term_text, terms))


@lru_cache(maxsize=64)
def _node_selector(rules: NodeRules) -> str:
    return _terms(rules.required)


@lru_cache(maxsize=64)
def _node_affinity(rules: NodeRules) -> str:
    return " or ".join(map(_terms, rules.any_of))


@lru_cache(maxsize=64)
def _tolerations(rules: NodeRules) -> str:
    """Return the tolerations as kubectl writes taints: "key=value:effect", "key:effect"."""
    texts = []
    for toleration in rules.tolerations:
        value = "" if toleration.operator == "Exists" else f"={toleration.value}"
        texts.append(f"{toleration.key}{value}:{toleration.effect}")
    return ", ".join(texts)


_GANG_FIELDS: Mapping[str, Describe] = MappingProxyType(
    {
        "number of replicas": lambda pod: str(claim_of(pod).replicas or ""),
        "min-member": lambda pod: str(claim_of(pod).min_member or ""),
        "size": lambda pod: str(claim_of(pod).size or ""),
        "scope": lambda pod: pod.topology_request.required_scope or "",
        "preferred scopes": lambda pod: ",".join(pod.topology_request.preferred_scopes),
        **{kind.annotation: partial(_per_scope, kind) for kind in PER_SCOPE},
        "policies": lambda pod: ",".join(pod.topology_request.policies),
    }
)
_ROLE_FIELDS: Mapping[str, Describe] = MappingProxyType(
    {
        "role-scope": lambda pod: pod.topology_request.role_scope or "",
        "role-preferred-scopes": lambda pod: ",".join(pod.topology_request.role_preferred),
        "segments": _segments,
    }
)
_REQUEST_FIELDS: Mapping[str, Describe] = MappingProxyType(
    {
        "requests": _resources,
        "matchAttribute": lambda pod: ",".join(pod.match_attributes),
        "claims with GPUs": lambda pod: "several" if pod.several_claims else "one at most",
        "node selector": lambda pod: _node_selector(pod.rules),
        "node affinity": lambda pod: _node_affinity(pod.rules),
        "tolerations": lambda pod: _tolerations(pod.rules),
    }
)
