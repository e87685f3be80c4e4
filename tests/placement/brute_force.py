"""Random small clusters and gangs, family by family: the planner must be as good as trying everything.

`python -m tests.placement.brute_force --seed S --instances N` draws new ones, prints those for which it is
not, and a line of JSON; it exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from muster.domain.causes.not_planned import NotDecided
from muster.domain.causes.out_of_place import RoleScope
from muster.domain.decision import Placed
from muster.domain.reasons import Cause
from muster.domain.request import Request
from muster.domain.sentences import sentence
from muster.domain.snapshot import Snapshot
from muster.placement.place import Limits, place
from muster.placement.verify import verify
from tests.placement import naive
from tests.placement.constraints import TESTED
from tests.placement.naive_parts import without_unmatched_gpus
from tests.placement.naive_rails import assert_fewest
from tests.placement.worlds import World, worlds

FAMILIES = {
    "slices": ("slices",),
    "slices beside members that run": ("slices", "running"),
    "policies": ("terms",),
    "policies, segments, members that run": ("terms", "segments", "running"),
    "policies and slices": ("terms", "slices"),
    "typical requests": ("typical",),
    "typical requests, slices": ("typical", "slices"),
    "typical requests, policies, levels": ("typical", "terms", "levels"),
    "typical requests, segments, members that run": ("typical", "segments", "running"),
    "more levels": ("levels",),
    "roles with scopes of their own": ("role scope",),
    "segments": ("segments",),
    "segments by rank": ("segments", "ranks"),
    "pairs, at most so many in one part": ("pairs", "max per"),
    "pairs, kept apart and spread": ("pairs", "anti-affinity", "skew"),
    "few must fit, in pairs, spread, at most so many": ("least", "pairs", "skew", "max per"),
    "pairs spread near others, beside members that run": ("pairs", "skew", "affinity", "running"),
    "members that run": ("running",),
    "members that run on GPUs nobody knows": ("unknown running",),
    "segments beside members that run": ("segments", "ranks", "running"),
    "segments, at most so many in one part": ("segments", "max per", "levels"),
    "roles, at most so many, beside members that run": ("role scope", "max per", "running"),
    "members kept apart": ("anti-affinity",),
    "members near pods": ("affinity",),
    "members spread": ("skew",),
    "room for few": ("room",),
    "members kept apart, near others": ("anti-affinity", "affinity"),
    "members kept apart and spread, ranks and levels": ("anti-affinity", "skew", "levels", "ranks"),
    "members spread, near pods, room for few": ("skew", "affinity", "room"),
    "members kept apart, spread, in segments": ("anti-affinity", "skew", "segments"),
    "members kept apart, near pods, beside members that run": ("anti-affinity", "affinity", "running"),
    "constraints, roles with scopes, at most so many": ("anti-affinity", "skew", "role scope", "max per"),
    "preferences": ("scores",),
    "preferences, segments, members that run": ("scores", "segments", "running", "levels"),
    "preferences, constraints, policies": ("scores", "skew", "anti-affinity", "terms"),
    "constraints, slices": ("anti-affinity", "skew", "affinity", "slices"),
    "constraints, policies, typical requests": ("anti-affinity", "skew", "terms", "typical"),
    "few must fit, in segments": ("least", "segments"),
    "few must fit, in segments by rank, beside members that run": ("least", "segments", "ranks", "running"),
    "few must fit, in segments, roles with scopes, at most so many": (
        "least",
        "segments",
        "role scope",
        "max per",
    ),
    "few must fit, in segments, kept apart and spread": ("least", "segments", "anti-affinity", "skew"),
    "subgroups": ("subgroups",),
    "subgroups, roles with scopes, members that run": ("subgroups", "role scope", "running"),
    "subgroups in segments, at most so many, levels": ("subgroups", "segments", "max per", "levels"),
    "equal names under different parents": ("paths",),
    "equal names, segments by rank, at most so many": ("paths", "segments", "ranks", "max per"),
    "equal names, subgroups, roles with scopes": ("paths", "subgroups", "role scope"),
    "equal names, constraints, members that run": ("paths", "anti-affinity", "skew", "running"),
    "equal names, levels with gaps": ("paths", "levels"),
    "equal names, levels with gaps, all at once": (
        "paths",
        "levels",
        "role scope",
        "segments",
        "max per",
        "running",
    ),
    "roles inside nodes": ("inside",),
    "roles inside nodes, in segments, beside members that run": ("inside", "segments", "running"),
    "roles inside nodes, at most so many, levels": ("inside", "max per", "levels"),
    "on one node, constraints": ("one node", "anti-affinity", "skew", "affinity"),
    "on one node, roles with scopes, at most so many": ("one node", "role scope", "max per"),
    "few must fit, subgroups": ("least", "subgroups"),
    "few must fit, subgroups in segments": ("least", "subgroups", "segments", "ranks"),
    "few must fit, subgroups, roles with scopes, members that run": (
        "least",
        "subgroups",
        "role scope",
        "running",
    ),
    "few must fit, equal names, in segments, roles inside nodes": ("least", "paths", "segments", "inside"),
    "preferred scopes of roles": ("role preferences",),
    "preferred scopes of roles, segments, levels": ("role preferences", "segments", "levels"),
    "preferred scopes of roles, subgroups, members that run": ("role preferences", "subgroups", "running"),
    "preferred scopes of roles with scopes, equal names": ("role preferences", "role scope", "paths"),
    "preferred scopes of roles, slices": ("role preferences", "slices"),
    "preferred scopes of roles, slices, members that run": ("role preferences", "slices", "running"),
    "some of several subgroups": ("quorum",),
    "some of several subgroups, in segments by rank": ("quorum", "segments", "ranks"),
    "some of several subgroups, roles with scopes, members that run": ("quorum", "role scope", "running"),
    "some of several subgroups, subgroups, levels": ("quorum", "subgroups", "levels"),
    "some of several subgroups, constraints": ("quorum", "anti-affinity", "skew", "affinity"),
    "some of several subgroups, on one node, at most so many": ("quorum", "one node", "max per"),
    "some of several subgroups, slices, policies": ("quorum", "slices", "terms"),
    "elastic roles": ("elastic",),
    "elastic roles, levels, roles with scopes": ("elastic", "levels", "role scope"),
    "elastic roles in segments, members that run": ("elastic", "segments", "ranks", "running"),
    "elastic roles, subgroups, constraints": ("elastic", "subgroups", "anti-affinity", "skew"),
    "elastic roles on one node, slices": ("elastic", "one node", "slices"),
    "some GPUs match": ("matching",),
    "some GPUs match, slices": ("matching", "slices"),
    "some GPUs match, typical requests, policies": ("matching", "typical", "terms"),
    "some GPUs match, in segments, beside members that run": ("matching", "segments", "running"),
    "some GPUs match, roles inside nodes, few must fit": ("matching", "inside", "least"),
    "some GPUs match, subgroups, preferences, GPUs nobody knows": (
        "matching",
        "subgroups",
        "scores",
        "unknown running",
    ),
    "some GPUs match, some of several subgroups": ("matching", "quorum"),
    "subrequests": ("subrequests",),
    "subrequests, in segments, beside members that run": ("subrequests", "segments", "running"),
    "subrequests, few must fit, roles inside nodes": ("subrequests", "least", "inside"),
    "members without GPUs": ("idle",),
    "members without GPUs, elastic roles": ("idle", "elastic"),
    "members without GPUs beside members that run": ("idle", "running"),
    "members without GPUs, segments, levels": ("idle", "segments", "levels"),
    "members without GPUs, slices, policies": ("idle", "slices", "terms"),
    "members without GPUs, roles with scopes, at most so many": ("idle", "role scope", "max per"),
    "members without GPUs, preferences, typical requests": ("idle", "scores", "typical"),
    "members without GPUs, kept apart and spread": ("idle", "anti-affinity", "skew"),
    "members without GPUs, roles inside nodes": ("idle", "inside"),
    "rails": ("rails",),
    "rails, at most so many": ("rails", "max per"),
    "rails, typical requests": ("rails", "typical"),
    "rails, policies": ("rails", "terms"),
    "rails, segments, members that run": ("rails", "segments", "ranks", "running"),
    "rails, members without GPUs": ("rails", "idle"),
    "rails, roles with scopes, at most so many": ("rails", "role scope", "max per", "levels"),
    "rails, some of several subgroups, preferences": ("rails", "quorum", "scores"),
    "rails, preferred scopes of roles, GPUs nobody knows": ("rails", "role preferences", "unknown running"),
    "rails, some GPUs match, few must fit": ("rails", "matching", "least"),
    "rails, members kept apart and spread": ("rails", "anti-affinity", "skew"),
    "all at once": ("levels", "ranks", "role scope", "segments", "max per", "running"),
}
"""Families: the features that their worlds have, by name."""
for kind_tested in TESTED:
    FAMILIES |= kind_tested.families


def assert_as_good_as_trying_everything(snapshot: Snapshot, request: Request) -> None:
    decision = place(snapshot, request, Limits(deterministic_time=60))
    for candidate in in_turn(request):
        request, matched_snapshot = candidate, without_unmatched_gpus(snapshot, candidate)
        expected = naive.best_value_and_plan(matched_snapshot, request)
        if expected is not None:
            break
    if expected is None:
        assert not isinstance(decision, Placed), decision.members
        assert decision.causes
        assert not any(isinstance(cause, NotDecided) for cause in decision.causes)
        assert not any(map(says_that_all_fit, decision.causes)), sentence(decision)
        return
    value, best_plan = expected
    assert isinstance(decision, Placed), f"{sentence(decision)} — but {best_plan.members}"
    assert verify(snapshot, request, decision) == ()
    assert naive.valid(matched_snapshot, request, decision.members)
    assert by_role(request, decision) == by_role(request, best_plan)
    if passes_over_a_preference(request) and decision.unproven == "role_preferences":
        return
    assert decision.optimal, (decision.gap, decision.truncated)
    assert naive.worth(matched_snapshot, request, decision.members) == value, (
        decision.members,
        best_plan.members,
    )
    assert_fewest(matched_snapshot, request, decision)
    best_plan = replace(best_plan, objective=replace(best_plan.objective, rails=decision.objective.rails))
    if not request.terms:  # between equals by a policy that spreads, NVLink domains may differ
        assert decision.objective == best_plan.objective, (decision.members, best_plan.members)
    assert decision.objective.costs == best_plan.objective.costs, (decision.members, best_plan.members)


def says_that_all_fit(cause: Cause) -> bool:
    """Whether the cause of a refusal says that as many members fit as must. The scope of a role may hold all
    of its members, while others need the same part."""
    fit, needed_members = getattr(cause, "members_fit", None), getattr(cause, "members_needed", 0)
    return fit is not None and fit >= needed_members and not isinstance(cause, RoleScope)


def passes_over_a_preference(request: Request) -> bool:
    """Whether some members alone, of a gang that shares GPUs, prefer a scope inside a node. The planner does
    not decide that, and says so."""
    members = {role.name for role in request.roles if role.members} | {
        running.role for running in request.running
    }
    return any(role.slice and role.members for role in request.roles) and any(
        not members <= preference.roles and not {"gpu", "nvlink-domain"}.isdisjoint(preference.scopes)
        for preference in request.role_preferences
    )


def in_turn(request: Request) -> list[Request]:
    """The request with each of its subrequests. Those of a role are for different numbers of GPUs here."""
    ranks = max(1, *(len(role.subrequests) for role in request.roles))
    requests = []
    for rank in range(ranks):
        roles = list(request.roles)
        for at, role in enumerate(roles):
            if role.subrequests:
                subrequest = role.subrequests[min(rank, len(role.subrequests) - 1)]
                roles[at] = replace(role, gpus=subrequest.gpus, matching=subrequest.matching, subrequests=())
        requests.append(replace(request, roles=tuple(roles)))
    return requests


def by_role(request: Request, decision: Placed) -> list[int]:
    return [sum(member.role == role.name for member in decision.members) for role in request.roles]


def run(name: str, number: int, count: int, instances: Counter[str]) -> str:
    """Draw `count` worlds of a family; return what is wrong with the simplest wrong one, or ""."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(worlds(*FAMILIES[name]))
    def all_of_them(world: World) -> None:
        instances[name] += 1
        assert_as_good_as_trying_everything(*world)

    try:
        all_of_them()
    except Exception:  # noqa: BLE001 - whatever is raised is the finding
        return traceback.format_exc()
    return ""


def main() -> int:
    """Run all families, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instances", type=int, default=50_000)
    parser.add_argument("families", nargs="*", default=[*FAMILIES])
    arguments = parser.parse_args()
    warnings.simplefilter("error", RuntimeWarning)
    began, instances, wrong = time.monotonic(), Counter[str](), list[str]()
    for name in arguments.families:
        failure = run(name, arguments.seed, -(-arguments.instances // len(arguments.families)), instances)
        if failure:
            wrong.append(name)
        print(
            f"{name}: {instances[name]} instances{', wrong' if failure else ''}",
            failure,
            file=sys.stderr,
            flush=True,
        )
    seconds = round(time.monotonic() - began)
    print(
        json.dumps(
            {"seed": arguments.seed, "instances": instances.total(), "seconds": seconds, "wrong": wrong}
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
