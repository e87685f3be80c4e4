"""The dialect of our own annotations: all requests to the planner, without any CRD.

gpu.topology/group: <the gang's name, within its namespace>     gpu.topology/min-member: "4"   size: "4"
gpu.topology/role: worker           role-scope: rack            rank: "0"
gpu.topology/scope: rack            preferred-scopes: nvlink-domain,node
gpu.topology/segment-size: "16,4"   segment-scope: rack,nvlink-domain
gpu.topology/max-per: rack=8,node=1
gpu.topology/preemptible: "false"   min-runtime: 30m    checkpoint-every: 10m    last-checkpoint: <a time>

These keys make a gang, or add constraints to a gang of another dialect or to a gang of one. Any other key
with this prefix is an error (`misspelt`), because the key would have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from muster.dialects.objects import Metadata
from muster.dialects.reading import (
    A_NAME,
    A_SCOPE,
    LABEL_KEY,
    NAME_PATTERN,
    Fields,
    Reading,
    natural,
    positive,
)
from muster.domain.causes.ill_formed import BadValue
from muster.domain.constraints import PER_SCOPE, PerScope
from muster.domain.pod import GangClaim, TopologyRequest
from muster.domain.request import Scope, Segment

NAME = "annotations"

PREFIX = "gpu.topology/"
GROUP = f"{PREFIX}group"
MIN_MEMBER = f"{PREFIX}min-member"
SIZE = f"{PREFIX}size"
ROLE = f"{PREFIX}role"
SCOPE = f"{PREFIX}scope"
ROLE_SCOPE = f"{PREFIX}role-scope"
ROLE_PREFERRED_SCOPES = f"{PREFIX}role-preferred-scopes"
PREFERRED_SCOPES = f"{PREFIX}preferred-scopes"
SEGMENT_SIZE = f"{PREFIX}segment-size"
SEGMENT_SCOPE = f"{PREFIX}segment-scope"
RANK = f"{PREFIX}rank"
PREEMPTIBLE = f"{PREFIX}preemptible"
MIN_RUNTIME = f"{PREFIX}min-runtime"
CHECKPOINT_EVERY = f"{PREFIX}checkpoint-every"
LAST_CHECKPOINT = f"{PREFIX}last-checkpoint"

OF_VICTIMS = (PREEMPTIBLE, MIN_RUNTIME, CHECKPOINT_EVERY, LAST_CHECKPOINT)
"""Annotations about the pod as a victim of preemption, which `pods.preemption` reads."""

KEYS = (
    GROUP, MIN_MEMBER, SIZE, ROLE, SCOPE, ROLE_SCOPE, ROLE_PREFERRED_SCOPES, PREFERRED_SCOPES,
    SEGMENT_SIZE, SEGMENT_SCOPE, *(f"{PREFIX}{kind.annotation}" for kind in PER_SCOPE), RANK,
    *OF_VICTIMS,
)  # fmt: skip

NODE_KEYS = frozenset(f"{PREFIX}{key}" for key in ("nvlink-domain", "nvlink-domain-size", "interconnect"))
"""Labels of nodes, which have no effect on a pod."""

MAX_CHARACTERS = 1_024
MAX_LISTED = 8
"""Largest number of scopes in one value, because each preferred scope may cost the planner a search."""
MAX_LEVELS = 3
"""Largest number of levels of segments. Fabrics are nested three deep: rack, nvlink-domain and node."""

_WORDS = ", ".join(scope.value for scope in Scope)
_SCOPES = f"scopes, each once, at most {MAX_LISTED}: {_WORDS}, or label keys of nodes"
# Members of a segment have GPUs of their own, so a segment never lies on one GPU.
_NOT_FOR_SEGMENTS = frozenset({Scope.GPU.value})


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """The values of a pod's own annotations.

    `group`, `min_member` and `size` are None if they are not given or can't be read. `gang_causes` are about
    these three, `causes` about the other annotations.
    """

    group: str | None = None
    min_member: int | None = None
    size: int | None = None
    topology_request: TopologyRequest = field(default_factory=TopologyRequest)
    rank: int | None = None
    gang_causes: tuple[BadValue, ...] = ()
    causes: tuple[BadValue, ...] = ()


def annotations_of(meta: Metadata) -> dict[str, str]:
    """Return the annotations of an object that are ours, known or not."""
    return {key: text for key, text in (meta.annotations or {}).items() if key.startswith(PREFIX)}


def read(object_name: str, meta: Metadata) -> OwnKeys:
    """Return the values of the annotations of the pod `object_name` (kind/namespace/name)."""
    annotations = meta.annotations or {}
    gang, constraints = Keys.of_keys(object_name, annotations), Keys.of_keys(object_name, annotations)
    group = gang.text_matching(GROUP, NAME_PATTERN, A_NAME)
    min_member = gang.number(MIN_MEMBER, positive, 'a positive whole number: "1", "2", …')
    size = gang.number(SIZE, positive, 'a positive whole number: "1", "2", …')
    if size is not None and size < (min_member or 1):
        gang.bad(SIZE, str(size), f"at least {MIN_MEMBER}, which is {min_member}")
    topology_request = constraints.topology_request()
    rank = constraints.number(RANK, natural, 'a whole number that is not negative: "0", "1", …')
    return OwnKeys(
        group, min_member, size, topology_request, rank, tuple(gang.causes), tuple(constraints.causes)
    )


def claim(object_name: str, keys: OwnKeys, other_gang: GangClaim | None) -> Reading:
    """Return the gang that the annotations name. `other_gang` is the pod's gang in another dialect; without a
    group, min-member and size belong to this gang."""
    if keys.group is not None:
        gang = GangClaim(NAME, keys.group, keys.min_member, size=keys.size, count_key=MIN_MEMBER)
        return Reading(gang, keys.gang_causes)
    key, count = (SIZE, keys.size) if keys.min_member is None else (MIN_MEMBER, keys.min_member)
    if count is None or keys.gang_causes:
        return Reading(causes=keys.gang_causes)
    if other_gang is not None:
        gang = GangClaim(NAME, other_gang.name, keys.min_member, size=keys.size, count_key=MIN_MEMBER)
        return Reading(gang)
    expected = f"a gang beside it: add the annotation {GROUP}"
    return Reading(causes=(BadValue(object_name, key, str(count), expected),))


class Keys(Fields):
    """The annotations of one pod. A value has a bounded length, and spaces around it do not count."""

    def text(self, field: str, required: bool = False) -> str | None:
        """Return the annotation; None if it is missing or too long."""
        text = super().text(field, required)
        if text is not None and len(text) > MAX_CHARACTERS:
            self.bad(field, text, f"at most {MAX_CHARACTERS:,} characters")
            return None
        return text.strip() if text is not None else None

    def topology_request(self) -> TopologyRequest:
        """Return the topology constraints in the annotations."""
        return TopologyRequest(
            role=self.text_matching(ROLE, NAME_PATTERN, A_NAME) or "",
            required_scope=self.text_matching(SCOPE, LABEL_KEY, A_SCOPE),
            preferred_scopes=self.names_in(PREFERRED_SCOPES, LABEL_KEY, MAX_LISTED, _SCOPES),
            role_scope=self.text_matching(ROLE_SCOPE, LABEL_KEY, A_SCOPE),
            role_preferred=self.names_in(ROLE_PREFERRED_SCOPES, LABEL_KEY, MAX_LISTED, _SCOPES),
            segments=self._segments(),
            per_scope=tuple(limit for kind in PER_SCOPE for limit in self._per_scope(kind)),
        )

    def _segments(self) -> tuple[Segment, ...]:
        """Return the segments, widest first: each size is a multiple of the next."""
        if self.raw(SEGMENT_SIZE) is None and self.raw(SEGMENT_SCOPE) is None:
            return ()
        sizes = self._sizes()
        expected = f"a scope for each of {SEGMENT_SIZE}, each once: {_scopes_except(_NOT_FOR_SEGMENTS)}"
        if self.raw(SEGMENT_SCOPE) is None:
            self.bad(SEGMENT_SCOPE, "", expected)
        scopes = self.names_in(SEGMENT_SCOPE, LABEL_KEY, MAX_LISTED, expected)
        if sizes and scopes and (len(scopes) != len(sizes) or Scope.GPU in scopes):
            self.bad(SEGMENT_SCOPE, ",".join(scopes), expected)
            return ()
        return tuple(map(Segment, sizes, scopes))

    def _sizes(self) -> tuple[int, ...]:
        expected = f"at most {MAX_LEVELS} sizes, each a multiple of the next, as in 16,4"
        if self.raw(SEGMENT_SIZE) is None:
            self.bad(SEGMENT_SIZE, "", f"{expected}, for the scopes in {SEGMENT_SCOPE}")
        text = self.text(SEGMENT_SIZE)
        if text is None:
            return ()
        sizes = tuple(size for part in _split(text) if (size := positive(part)) is not None)
        are_all_sizes = len(sizes) == len(_split(text)) <= MAX_LEVELS
        if not are_all_sizes or any(outer % inner for outer, inner in pairwise(sizes)):
            self.bad(SEGMENT_SIZE, text, expected)
            return ()
        return sizes

    def _per_scope(self, kind: type[PerScope]) -> tuple[PerScope, ...]:
        key = f"{PREFIX}{kind.annotation}"
        text = self.text(key)
        if text is None:
            return ()
        members_by_scope: dict[str, int] = {}
        pairs = _split(text)
        for pair in pairs:
            scope, _, count = (part.strip() for part in pair.partition("="))
            members = positive(count)
            if members is not None and LABEL_KEY.fullmatch(scope) and scope not in kind.not_by:
                members_by_scope[scope] = members
        if not len(members_by_scope) == len(pairs) <= MAX_LISTED:
            self.bad(key, text, f"as in rack=2,node=1, each scope once: {_scopes_except(kind.not_by)}")
            return ()
        # In a fixed order, because the pods of a gang may list them differently.
        return tuple(kind(scope, members_by_scope[scope]) for scope in sorted(members_by_scope))


def _scopes_except(not_by: frozenset[str]) -> str:
    """Return the words for all scopes except these."""
    return f"{', '.join(scope.value for scope in Scope if scope.value not in not_by)}, or label keys of nodes"


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
