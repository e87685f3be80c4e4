"""Add to a model that enough subgroups of the gang start, as its quorum says."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.quorums import Leaf, Quorum
from muster.placement.model.variables import IntVar, LinearExpr, Variables


@dataclass(frozen=True, slots=True)
class QuorumRule:
    """A quorum over roles, by index: several may have one of the `names`.

    `need` is how many members each has, and `alike` the role as whose members the model counts them: so it
    has few packings, though a gang may have many subgroups that ask for the same.
    """

    quorum: Quorum
    names: tuple[str, ...]
    need: tuple[int, ...]
    alike: tuple[int, ...]

    @property
    def counted(self) -> tuple[int, ...]:
        """Return how many members the model counts of each role."""
        every = range(len(self.need))
        return tuple(sum(self.need[i] for i in every if self.alike[i] == role) for role in every)

    def add(self, variables: Variables) -> list[IntVar]:
        """Let members be placed only so that the gang starts. Return how many are placed of each role."""
        model = variables.model
        placed = [model.new_int_var(0, need, f"of/{role}") for role, need in enumerate(self.need)]
        for role, counted in enumerate(variables.placed):
            model.add(LinearExpr.sum([placed[i] for i, of in enumerate(self.alike) if of == role]) == counted)
        model.add(self._started(variables, placed, self.quorum, "quorum") == 1)
        return placed

    def _started(self, variables: Variables, placed: list[IntVar], part: Quorum | Leaf, name: str) -> IntVar:
        """Return whether the part may get members and counts as started."""
        model, started = variables.model, variables.model.new_bool_var(name)
        if isinstance(part, Leaf):
            roles = [role for role, of in enumerate(self.names) if of in part.roles]
            members = LinearExpr.sum([placed[role] for role in roles])
            model.add(members >= part.least * started)
            model.add(members <= part.limit(sum(self.need[role] for role in roles)) * started)
            if part.unit > 1:
                self._whole_replicas(variables, members, part, name)
            return started
        parts = [self._started(variables, placed, each, f"{name}/{i}") for i, each in enumerate(part.parts)]
        for each in parts:
            model.add_implication(each, started)
        count = LinearExpr.sum(parts)
        model.add(count >= part.least * started)
        if part.only:
            model.add(count <= part.least)
        return started

    def _whole_replicas(self, variables: Variables, members: LinearExpr, leaf: Leaf, name: str) -> None:
        """Let the members make whole replicas, with those that are there already. No member may come too.

        Those that come back to replicas may come alone.
        """
        model, most = variables.model, sum(self.need)
        some = model.new_bool_var(f"{name}/some")
        replicas = model.new_int_var(0, most // leaf.unit + 1, f"{name}/replicas")
        model.add(members >= some)
        model.add(members <= most * some)
        alone = model.new_bool_var(f"{name}/alone")
        model.add(members <= leaf.back).only_enforce_if(alone)
        model.add(members + leaf.begun * some == leaf.unit * replicas).only_enforce_if(~alone)
