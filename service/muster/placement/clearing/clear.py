"""Find the cheapest victims of a gang: first their highest priority, then their loss, then their number.

Which victims are needed depends on all that `place` knows: islands, segments, rules between pods, and more.
No model of reasonable size has all that. So two parts take turns, for one region of the cluster at a time.

- A *relaxation* is a model that knows only sums. On each node, members must fit into what is free and what
  victims leave, by GPUs, cpu, memory and so on. It names the cheapest victims quickly. Real victims never
  cost less, because whatever fits really also fits by sums.
- The search of `place` decides whether the gang really fits without these victims. If so, they are the
  cheapest. If not, the model gets a *cut*: other pods, and the rule that one of them must go.

For a cut, the search is asked again without ever more pods. The cut is a smallest set of pods that forbids
the gang by staying, even if all other pods go. All victims that help have a pod of the cut, so no answer
is lost. And the model never names the same victims again.

An example: a gang wants two GPUs of one island. Node n has islands of GPUs 0 and 1, and of GPUs 2 and 3.
GPU 1 is free. Gang x has GPU 0 and costs 30 to end, y has GPU 2 and costs 10, z has GPU 3 and costs 40.

    model:  One GPU is lacking, so y ends, which costs 10.
    search: GPUs 1 and 2 are free, on two islands. The gang does not fit.
    cut:    While x and z both stay, the gang does not fit. So x or z must go.
    model:  x ends, which costs 30.
    search: GPUs 0 and 1 are free, on one island. The gang fits, and x is the answer.

Priorities are tried from the lowest on, and no unit of a higher priority may go. A gang that must lie in one
rack has a region for each rack. Regions are tried in the order of a lower bound of their cost
(`Estimates.bounds`). The search ends at the first region whose bound is not below the cheapest cost so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from operator import itemgetter

import numpy as np

from muster.domain.clearing import Clearing, ClearQuestion, NoClearing, Victim
from muster.domain.decision import Placed
from muster.domain.snapshot import Snapshot
from muster.placement.clearing.blockers import no_clearing
from muster.placement.clearing.estimates import Estimates
from muster.placement.clearing.pods import pods_of, snapshot_without
from muster.placement.clearing.relaxation import ALL, Part, Relaxation
from muster.placement.cluster.columns import Bools, Ints
from muster.placement.cluster.matching import GangCluster, variants_by_subrequest
from muster.placement.explain.conflict import irreducible_subset
from muster.placement.gang.instance import Instance, instance_of, unsupported_rule
from muster.placement.limits import Budget, Limits, count_unlike_roles
from muster.placement.model.solver import SolveStatus
from muster.placement.model.victims import VictimModel
from muster.placement.place import PlacementDefect, place
from muster.placement.search.plan import SearchResult
from muster.placement.search.search import best_for_most
from muster.placement.verify import verify_clearing

MOST_CUTS = 200
"""How often a region is solved again because the gang does not fit without the cheapest victims."""


def clear(snapshot: Snapshot, question: ClearQuestion, limits: Limits | None = None) -> Clearing | NoClearing:
    """Return the cheapest victims with whose end the gang fits, with the plan on what they leave.

    `snapshot` is the cluster with all pods. If the gang fits already, no pod is a victim.

    Raises:
        PlacementDefect: The plan or the victims do not pass `verify`.
    """
    return _Search(snapshot, question, limits or Limits()).answer()


@dataclass(frozen=True, slots=True)
class _Victims:
    """Victims, and what they cost."""

    parts: frozenset[Part]
    cost: int


class _Search:
    """The search for one question."""

    def __init__(self, snapshot: Snapshot, question: ClearQuestion, limits: Limits) -> None:
        self._snapshot, self._question = snapshot, question
        self._limits, self._budget = limits, Budget(limits)
        request = question.request
        self._request = replace(request, preferred_scopes=(), role_preferences=(), terms=())
        """The request without preferences. No pod is a victim for the sake of a preference."""
        self._pods = pods_of(question.occupancy, GangCluster(snapshot, request).columns)
        self._going = [self._pods.occupants[pod] for pod in np.flatnonzero(self._pods.is_going)]
        cluster = GangCluster(snapshot_without(snapshot, question.occupancy, self._going), self._request)
        self._relaxation = Relaxation(cluster, self._pods, question.occupancy, limits.excluded)
        self._undecided_bound = inf
        """Victims in regions that time left undecided cost at least this; infinite if all are decided."""

    def answer(self) -> Clearing | NoClearing:
        """Return the cheapest victims, or that there are none."""
        cluster, gang, excluded = self._relaxation.cluster, self._request.gang, self._limits.excluded
        unlike_roles = count_unlike_roles(self._request, excluded)
        if unlike_roles > self._limits.most_roles or unsupported_rule(instance_of(cluster, excluded)):
            return NoClearing(gang, proven=False)
        constraints = self._request.constraints
        may_go = self._pods.may_go(self._question.priority, constraints, cluster.columns)
        priority_of_pod = self._pods.priority[self._pods.unit]
        proven = True
        for priority in (-inf, *np.unique(priority_of_pod[may_go]).tolist()):
            self._undecided_bound = inf
            victims = self._cheapest(may_go & (priority_of_pod <= priority))
            if victims is not None:
                return self._answer_with(victims, proven)
            proven &= self._undecided_bound == inf
        if not proven:
            return NoClearing(gang, proven=False)
        return no_clearing(self._relaxation, may_go, self._question.priority, self._search_without)

    def _cheapest(self, may_go: Bools) -> _Victims | None:
        """Return the cheapest victims among these pods."""
        room, estimates = self._relaxation.room(may_go), Estimates(self._relaxation, may_go)
        cheapest = self._good_choice(estimates, room)
        for bound, region in estimates.bounds(self._relaxation.possible_regions(room)):
            if cheapest is not None and bound >= cheapest.cost:
                break
            if self._budget.spent:
                self._undecided_bound = min(self._undecided_bound, bound)
                break
            below = None if cheapest is None else cheapest.cost
            cheapest = self._cheapest_in(region, bound, room, may_go, below) or cheapest
        return cheapest

    def _good_choice(self, estimates: Estimates, room: Ints) -> _Victims | None:
        """Return victims that help, not always the cheapest, if these are found fast.

        Dearer victims are then of no interest, which leaves fewer units to the model.
        """
        parts = estimates.good_choice(room)
        gone = self._pods_of(parts)
        allowed = self._question.occupancy.budgets
        covered = Counter(self._pods.occupants[pod].budget for pod in gone)
        is_allowed = all(count <= allowed.get(budget, 0) for budget, count in covered.items() if budget)
        if not parts or not is_allowed or not self._fits(gone):
            return None
        return _Victims(frozenset(parts), self._relaxation.cost(parts, estimates.may_go))

    def _cheapest_in(
        self, region: int, bound: int, room: Ints, may_go: Bools, below: int | None
    ) -> _Victims | None:
        """Return the cheapest victims in the region that cost less than `below`; None if there are none.

        If time leaves that undecided, `self._undecided_bound` falls to a bound of their cost.
        """
        problem, pods, units = self._relaxation.problem(region, room, may_go, below)
        model, index = VictimModel(problem, below), {pod: p for p, pod in enumerate(pods.tolist())}
        for _ in range(MOST_CUTS):
            status, choice = model.cheapest(self._budget)
            if choice is None:
                break
            bound = max(bound, choice.bound)
            single = pods[list(choice.pods)].tolist()
            parts = [(u, ALL) for u in units[list(choice.units)].tolist()]
            parts += [(int(self._pods.unit[pod]), pod) for pod in single]
            gone = self._pods_of(parts)
            fits = self._fits(gone)
            if fits:
                if choice.cost > bound:
                    self._undecided_bound = min(self._undecided_bound, bound)
                return _Victims(frozenset(parts), choice.cost)
            if fits is None:
                break
            cut = self._cut(gone, pods)
            if not cut:
                return None
            model.require([index[pod] for pod in cut])
        if status is not SolveStatus.INFEASIBLE:
            self._undecided_bound = min(self._undecided_bound, bound)
        return None

    def _pods_of(self, parts: Collection[Part]) -> list[int]:
        """Return the pods that go."""
        ended = [unit for unit, pod in parts if pod == ALL]
        ending = np.flatnonzero(np.isin(self._pods.unit, ended) & self._pods.is_movable)
        return sorted([*ending.tolist(), *(pod for _, pod in parts if pod != ALL)])

    def _snapshot_without(self, gone: Collection[int]) -> Snapshot:
        """Return the cluster without these pods, and without those that end anyway."""
        occupants = [*self._going, *(self._pods.occupants[pod] for pod in gone)]
        return snapshot_without(self._snapshot, self._question.occupancy, occupants)

    def _fits(self, gone: Collection[int]) -> bool | None:
        """Return whether the gang fits without these pods; None if that was not decided."""
        _, answer = self._search_without(gone)
        return True if answer.nodes else False if answer.gap is None else None

    def _search_without(self, gone: Collection[int]) -> tuple[Instance, SearchResult]:
        """Search a plan on the cluster without these pods."""
        snapshot = self._snapshot_without(gone)
        for variant in variants_by_subrequest(snapshot, self._request):
            instance = instance_of(GangCluster(snapshot, variant), self._limits.excluded)
            instance, answer = best_for_most(instance, self._budget)
            if answer.nodes or answer.gap is not None:
                break
        return instance, answer

    def _cut(self, gone: list[int], pods: Ints) -> list[int]:
        """Return pods of the region, other than those `gone`, that forbid the gang together.

        As long as all of them stay, the gang does not fit, even if all other pods of the region go. So at
        least one must go. No pod can be left out of the list, and pods with a large loss are taken if
        possible. The list is empty if no pods help.
        """
        by_part: dict[Part, list[int]] = {}
        for pod in np.setdiff1d(pods, gone).tolist():
            unit = int(self._pods.unit[pod])
            by_part.setdefault((unit, pod if self._pods.spare[unit] else ALL), []).append(pod)
        parts = sorted(by_part, key=lambda part: (self._loss(part), part))

        def forbid(staying: Collection[Part]) -> bool:
            going = [pod for part, of_part in by_part.items() if part not in staying for pod in of_part]
            return self._fits([*gone, *going]) is False

        staying = irreducible_subset([parts], forbid)
        return sorted(pod for part in staying for pod in by_part[part])

    def _loss(self, part: Part) -> int:
        unit, pod = part
        return int(self._pods.end_loss[unit] if pod == ALL else self._pods.restart_loss[pod])

    def _answer_with(self, victims: _Victims, proven: bool) -> Clearing | NoClearing:
        """Return the victims by name, with the plan on what they leave.

        `proven`: no victims of a lower priority help.
        """
        request, parts = self._question.request, victims.parts
        gap = max(0.0, 1 - self._undecided_bound / victims.cost) if victims.cost else 0.0
        if gap:
            # The model may name victims that can be spared, as long as it has not proven its answer.
            parts = irreducible_subset([sorted(parts)], lambda some: bool(self._fits(self._pods_of(some))))
        plan = place(self._snapshot_without(self._pods_of(parts)), request, self._limits)
        if not isinstance(plan, Placed):
            return NoClearing(request.gang, proven=False)
        nodes = {member.node for member in plan.members}
        answer = Clearing(
            request.gang,
            tuple(self._victims_of(parts)),
            tuple(occupant for occupant in self._going if occupant.usage.node in nodes),
            plan,
            proven and not gap,
            gap if gap and proven else None,
        )
        violations = verify_clearing(self._snapshot, self._question, answer)
        if violations:
            raise PlacementDefect(violations)
        return answer

    def _victims_of(self, parts: Collection[Part]) -> Iterator[Victim]:
        """Yield the victims, by the keys of their units."""
        pods, now = self._pods, self._question.occupancy.now
        for index, group in groupby(sorted(parts), key=itemgetter(0)):
            of_unit, unit = list(group), pods.units[index]
            gone = sorted((pods.occupants[pod] for pod in self._pods_of(of_unit)), key=lambda pod: pod.name)
            members = [pods.occupants[pod] for pod in self._pods_of([(index, ALL)])]
            yield Victim(
                pods.keys[index],
                unit.name,
                unit.priority,
                tuple(gone),
                ends=of_unit == [(index, ALL)],
                loss=sum(map(self._loss, of_unit)),
                members=len(members),
                ran_s=max(0.0, now - min(member.started for member in members)),
            )
