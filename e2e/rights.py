"""Compare the rights that roles give (RBAC rules) with the requests that were made (the audit log). Pure.

Service and scheduler share one account (they are containers of one pod) and tell themselves apart by their
user agents: each is held against the roles that say what it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from local_cluster.api import Object

ACCOUNT = "system:serviceaccount:muster-system:muster"
AUDIT_POLICY = f"""\
# All that one account asks for, granted or not, without bodies; nothing of anybody else's.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {{level: Metadata, users: ["{ACCOUNT}"]}}
- level: None
"""
SERVICE, SCHEDULER = "service", "scheduler"
ROLES = {
    "muster-service": SERVICE,
    "muster-service-jobs": SERVICE,
    "muster-policies": SERVICE,
    "muster-scheduler": SCHEDULER,
    "muster-election": SCHEDULER,
}
AGENTS = {"muster": SERVICE, "shim": SCHEDULER}
"""What a user agent begins with, up to "/"."""

PUBLIC_PATHS = frozenset({"/livez"})
"""Paths that we ask for and that the role system:public-info-viewer of each cluster allows to every user."""

DECISION = "authorization.k8s.io/decision"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A verb on a resource ("pods/binding", "podgroups.scheduling.run.ai") that a role of `part` gives; in
    one namespace and on some names alone where these are not empty."""

    part: str
    verb: str
    resource: str
    namespace: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        names_text = f" named {', '.join(self.names)}" if self.names else ""
        return f"{self.part}: {self.verb} {self.resource}{place}{names_text}"

    def covers(self, request: Request) -> bool:
        return (
            (self.part, self.verb, self.resource) == (request.part, request.verb, request.resource)
            and self.namespace in ("", request.namespace)
            and (not self.names or request.name in self.names)
        )


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """What somebody asked for; `part` is their user agent where it is none of ours. Not `allowed`: by RBAC,
    whatever admission says."""

    part: str
    verb: str
    resource: str
    namespace: str
    name: str
    allowed: bool

    def __str__(self) -> str:
        return f"{self.part}: {self.verb} {self.resource} {self.namespace}/{self.name}"


def grants(manifests: Iterable[Object]) -> set[Grant]:
    """What Roles and ClusterRoles give, each verb on each resource for itself."""
    all_grants = set()
    for role in manifests:
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        meta = role["metadata"]
        for rule in role["rules"]:
            names = tuple(rule.get("resourceNames") or ())
            all_grants |= {
                Grant(ROLES[meta["name"]], verb, named(resource, group), meta.get("namespace", ""), names)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    return all_grants


def named(resource: str, group: str) -> str:
    """As kubectl names it: the group after the resource, then the subresource."""
    first, slash, sub = resource.partition("/")
    return f"{first}{'.' if group else ''}{group}{slash}{sub}"


def requests(lines: Iterable[str]) -> Iterator[Request]:
    """What an audit log of that policy tells. A path that is no resource stands for one: "/livez"."""
    for line in lines:
        event = json.loads(line)
        about = event.get("objectRef") or {"resource": event["requestURI"].partition("?")[0]}
        agent = str(event.get("userAgent", ""))
        resource = "/".join(about[key] for key in ("resource", "subresource") if about.get(key))
        yield Request(
            part=AGENTS.get(agent.partition("/")[0], agent),
            verb=str(event["verb"]),
            resource=named(resource, about.get("apiGroup", "")),
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
            allowed=(event.get("annotations") or {}).get(DECISION) != "forbid",
        )


def unused(all_grants: Iterable[Grant], sent: Iterable[Request], excepted: Mapping[str, str]) -> list[str]:
    """Grants that no request needed and that are not `excepted`: "VERB RESOURCE" → reason.

    To list goes with to watch: informers begin with a stream (WatchList), or with a list where an API server
    has none.
    """
    sent = {request for request in sent if request.allowed}

    def needed(grant: Grant) -> bool:
        ways = [grant, replace(grant, verb="watch")] if grant.verb == "list" else [grant]
        return any(way.covers(request) for way in ways for request in sent)

    return sorted(
        str(grant)
        for grant in all_grants
        if f"{grant.verb} {grant.resource}" not in excepted and not needed(grant)
    )


def refused(all_grants: Iterable[Grant], sent: Iterable[Request]) -> list[str]:
    """Requests that were refused and that no role allows. Others may be refused all the same: for
    a moment after its start an API server knows no roles, not even its own, which allow PUBLIC_PATHS."""
    all_grants = [*all_grants]
    return sorted(
        {
            str(request)
            for request in sent
            if not request.allowed
            and request.resource not in PUBLIC_PATHS
            and not any(grant.covers(request) for grant in all_grants)
        }
    )


def borrowed(all_grants: Iterable[Grant], sent: Iterable[Request]) -> list[str]:
    """Requests for resources that only the other part's roles allow."""
    all_grants = [*all_grants]
    allowed_requests = (
        sent_request
        for sent_request in sent
        if sent_request.allowed and not sent_request.resource.startswith("/")
    )
    return sorted(
        {
            str(sent_request)
            for sent_request in allowed_requests
            if not any(grant.covers(sent_request) for grant in all_grants)
        }
    )
