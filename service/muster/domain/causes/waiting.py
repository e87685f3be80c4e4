"""Causes of gangs that are not complete yet."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.causes.cause import BaseCause
from muster.domain.words import of_role, plural


@dataclass(frozen=True, slots=True)
class MembersMissing(BaseCause):
    """`role`: "" where members of any role count. `stateful_set`: the StatefulSet that has made one pod, and
    may make each of the others when the one before runs; "" if no such set is known."""

    present: int
    needed: int
    role: str = ""
    stateful_set: str = ""

    def __str__(self) -> str:
        missing = max(0, self.needed - self.present)
        members = f"{plural('member', missing)}{of_role(self.role)}"
        sentence = f"waiting for {missing} more {members}: {self.present} of {self.needed} are here"
        if not self.stateful_set:
            return sentence
        maker = f"StatefulSet {self.stateful_set} makes its pods one by one"
        return f"{sentence}; {maker}, unless it has podManagementPolicy: Parallel"

    @property
    def advice(self) -> str:
        if self.stateful_set:
            return f"Create StatefulSet {self.stateful_set} again with podManagementPolicy: Parallel."
        missing = self.needed - self.present
        lacks = f"{missing} more {plural('pod', missing)}{of_role(self.role)}"
        return f"Create {lacks}, or ask for fewer members. A quota or a suspended job may hold pods back."


@dataclass(frozen=True, slots=True)
class PodGroupMissing(BaseCause):
    """The pods name a PodGroup that is not there (yet). `name` is namespace/name."""

    name: str
    stays = True

    def __str__(self) -> str:
        return f"PodGroup {self.name} does not exist yet; its pods wait for it"

    @property
    def advice(self) -> str:
        return f"Create PodGroup {self.name}, or remove its name from the pods."


@dataclass(frozen=True, slots=True)
class JobMissing(BaseCause):
    """The job that made the pods, as kind, namespace and name, is not there: it says how many they are."""

    job: str
    stays = True

    def __str__(self) -> str:
        return f"{self.job} is not there; its pods wait for it, since it says how many they are"

    @property
    def advice(self) -> str:
        return f"Create {self.job} again, or delete its pods."


Waiting = MembersMissing | PodGroupMissing | JobMissing
