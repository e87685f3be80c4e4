"""What helps against each kind of cause, for those who own the pods or the cluster.

The planner's relaxations say more, where it has tried some: they come first. This is the general way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster.domain import reasons
from muster.domain.cause_sentences import cause_sentence
from muster.domain.printable import printable
from muster.domain.words import amount, counted, plural


@dataclass(frozen=True, slots=True)
class CauseView:
    """A cause as it is shown: its kind, what blocks the gang, with numbers, and what would help."""

    kind: str
    says: str
    helps: str


def explained(causes: Iterable[reasons.Cause]) -> tuple[CauseView, ...]:
    """Return causes as they are shown."""
    return tuple(
        CauseView(type(cause).__name__, _sentence(cause_sentence(cause)), printable(advice(cause)))
        for cause in causes
    )


def _sentence(clause: str) -> str:
    return printable(f"{clause[:1].upper()}{clause[1:]}.")


def advice(cause: reasons.Cause) -> str:
    """Return what helps against a cause, as a sentence."""
    return _about_the_pods(cause) or _about_the_room(cause)


def _about_the_pods(cause: reasons.Cause) -> str:  # noqa: PLR0911 - one cause, one advice
    """Return what helps against what is wrong with the pods, or missing; "" for another cause."""
    match cause:
        case reasons.BadValue(_, field, _, expected):
            return f"Set {field} to {expected}, and create the pods again."
        case reasons.MembersDisagree(field):
            return f"Give all pods of the gang the same {field}, and create those again that differ."
        case reasons.TooManyMembers(live, replicas):
            return f"Delete {counted('pod', live - replicas)}, or give each new gang a name of its own."
        case reasons.ForgedAllocation(_, key):
            return f"Create the pods without the annotation {key}."
        case reasons.DialectsDisagree():
            return "Name the gang and its size in one way, or in the same words in each."
        case reasons.MembersMissing(present, needed, role):
            lacks = f"{needed - present} more {plural('pod', needed - present)}"
            lacks += f" of role {role}" if role else ""
            return f"Create {lacks}, or ask for fewer members. A quota or a suspended job may hold pods back."
        case reasons.PodGroupMissing(name):
            return f"Create PodGroup {name}, or remove its name from the pods."
        case reasons.JobMissing(job):
            return f"Create {job} again, or delete its pods."
        case reasons.ClaimsMissing(claims, more):
            return f"Create the {plural('PersistentVolumeClaim', len(claims) + more)}."
        case reasons.RefusedEverywhere():
            return "Change what the plugin refuses in the pod, or in the objects that the pod names."
    return ""


def _about_the_room(cause: reasons.Cause) -> str:  # noqa: PLR0911, PLR0912 - one cause, one advice
    """Return what helps if nothing fits, or if that is not known."""
    match cause:
        case reasons.MemberTooLarge(_, resource, needed, _, largest):
            larger = amount(resource, needed)
            return f"Ask for at most {amount(resource, largest)} in one pod, or add a node with {larger}."
        case reasons.ClusterTooSmall():
            return "Ask for fewer members, or add nodes: it does not fit even on an empty cluster."
        case reasons.NotEnoughFree(_, resource, free, needed):
            lacks = amount(resource, needed - free)
            return f"Wait until {lacks} more are free, ask for less, or add nodes."
        case reasons.FreeInPieces(_, resource, largest=largest):
            piece = amount(resource, largest)
            return f"Ask for at most {piece} in one pod, or wait until more is free on one node."
        case reasons.FreeApart():
            return "Wait until the resources are free on the same nodes, or ask for less of one of them."
        case reasons.DomainTooSmall(scope, even_empty=even_empty) | reasons.RoleScope(
            _, scope, even_empty=even_empty
        ):
            wait = "" if even_empty else f", or wait until more is free in one {scope}"
            return f"Require a wider scope than {scope}, or only prefer {scope}{wait}."
        case reasons.NoSuchDomain(scope, _, labels):
            label = f" with {' or '.join(labels)}" if labels else ""
            return f"Label the nodes{label}, or require another scope than {scope}."
        case reasons.IndicesUnknown(scope):
            return f"Wait until those pods end, or only prefer {scope}."
        case reasons.SegmentsTooLarge():
            return "Make the segments smaller, or their scope wider."
        case reasons.ConstraintCause():
            return "Relax the constraint, or wait until other pods make room for it."
        case reasons.RunningElsewhere(scope):
            return f"Wait until more is free in that {scope}, or start the whole gang again."
        case reasons.NodesExcluded(_, by, nodes):
            return f"Let the {plural('node', nodes)} admit the pods, or the pods accept this: {by}."
        case reasons.NotSupported("role-scope", "gpu"):
            return "Let one pod ask for the memory of all, or make the role a gang of its own with scope gpu."
        case reasons.NotSupported(rule, _, attribute) if attribute:
            return f"Remove {rule} or matchAttribute {attribute}."
        case reasons.NotSupported(rule):
            return f"Remove {rule}, or ask for whole GPUs."
        case reasons.SubgroupsNeeded():
            return "Lower minSubGroup, or make the subgroups smaller: any of them may start the gang."
        case reasons.NotDecided() | reasons.TookTooLong():
            return "It is tried again. If that does not help, make the pods more alike."
        case reasons.PlannerDefect():
            return "Report it with the output of `muster capture`."
        case reasons.TookTooMuchMemory():
            return "Make the pods more alike, or raise planner.memory_mib."
        case reasons.TooManyRoles(_, most):
            return f"Give pods that do the same work equal requests: a gang may have {most} roles."
    raise AssertionError(cause)
