"""The auditor of the chaos: what must hold, judged from changes and lists of the API server alone. Pure.

double-booked      no GPU belongs to two pods, and no node gives more GPUs than it has
partial            no gang stays half bound for longer than the grace
lost               no pod vanishes without having been deleted
waits-though-fits  once all is quiet, no complete gang waits for which there is room
allocation         annotations say what the pod has, from its Binding on: the other rules of `e2e.audit`
devices            claims of DRA hold planned devices, and not longer than their pods: `e2e.device_claims`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from e2e.audit import Auditor, Violation, judge
from e2e.chaos.fits import Fit, waiting_that_fit
from e2e.chaos.losses import Losses
from e2e.chaos.meter import Meter
from e2e.chaos.minimums import Minimums, least_of
from e2e.chaos.waits import ASKED_AT, WaitReport, Waits
from e2e.device_claims import CLAIMS, LEFT_S, ClaimFacts, DeviceHistory, DevicePod, twice, unplanned
from e2e.facts import Gang, NodeFacts, PodFacts
from e2e.record import NODES, PODS, Change
from local_cluster.api import Object
from local_cluster.nodes import HOSTNAME, RACK

GRACE_S = 30.0
"""How long a gang may be half bound while the system is up, as the design says."""

MARGIN_S = 15.0
"""What back-off after an outage adds to it."""

RACE_S = 15.0
"""Seconds that Bindings of other members may hang after one was deleted, if the API server hangs."""

PODGROUPS = "/apis/scheduling.run.ai/v2/podgroups"
POD_GROUP = "scheduling.run.ai/pod-group"
NATIVE_PODGROUPS, SCHEDULING_GROUP = "/apis/scheduling.k8s.io/v1beta1/podgroups", "schedulingGroup"
"""PodGroups of Kubernetes' own API, and the field by which a pod names one."""
SCOPES_BY_LABEL = {RACK: "rack", HOSTNAME: "node"}

DOUBLE_BOOKED, PARTIAL, LOST, WAITS = "double-booked", "partial", "lost", "waits-though-fits"
ALLOCATION, DEVICES = "allocation", "devices"
RULES = (DOUBLE_BOOKED, PARTIAL, LOST, WAITS, ALLOCATION, DEVICES)
RULE_OF = dict.fromkeys(("gpu-twice", "overcommitted", "memory-overcommitted"), DOUBLE_BOOKED)
RULE_OF |= {"gang-partial": PARTIAL, "device-twice": DOUBLE_BOOKED}
RULE_OF |= dict.fromkeys(("device-not-planned", "device-left"), DEVICES)
"""Rules of `e2e.audit` under the names used here; all others are ALLOCATION."""


class ChaosAuditor:
    """Judges one namespace. `gpus`: how many the cluster has, for its load. Room on `hostile_nodes` is
    no room.

    The grace counts the time in which all processes were well: outages are told by who made them. It counts
    seconds of `clock`, which is given moments of the changes.
    """

    def __init__(
        self,
        namespace: str,
        gpus: int,
        *,
        grace_s: float = GRACE_S + MARGIN_S,
        clock: Callable[[float], float] = float,
        hostile_nodes: Collection[str] = (),
    ) -> None:
        self._hostile_nodes = hostile_nodes
        self._clock = clock
        self.losses = Losses()
        self.meter = Meter(gpus)
        self.waits = Waits()
        self.relisted = 0
        self.longest_partial_s = 0.0
        self._prefix = f"{namespace}/"
        self._history = Auditor(grace_s, race_s=RACE_S)
        self.devices = DeviceHistory(LEFT_S + MARGIN_S)
        self._outages: list[tuple[float, float]] = []
        self._half_since: dict[str, float] = {}
        self._groups: dict[str, Object] = {}
        self._natives: dict[str, Object] = {}
        """The PodGroups of Kubernetes that exist."""
        self._minimums = Minimums(RACE_S)
        self._members: dict[str, dict[str, Object]] = defaultdict(dict)
        """The name of such a PodGroup → UID → the pods that name it."""
        self._found: list[Violation] = []

    # --- during the run -------------------------------------------------------------------------

    @property
    def binds(self) -> int:
        return len(self._history.binds)

    def outage(self, began: float, ended: float) -> None:
        """Processes were killed or hung. To be told before what was seen meanwhile."""
        self._outages.append((began, ended))

    def waited(self, scheduler: str) -> WaitReport:
        """Return how long gangs of this scheduler waited that no fault was aimed at."""
        return self.waits.report(scheduler, self._outages)

    def see(self, change: Change) -> None:
        """One change, in the order in which the API server made them."""
        if change.kind == NODES:
            self._history.node(NodeFacts.of(change.body))
        elif change.kind == PODGROUPS:
            self._groups[_name(change.body)] = change.body
        elif change.kind == NATIVE_PODGROUPS:
            self._see_native(change)
        elif change.kind == PODS and _name(change.body).startswith(self._prefix):
            self._see_pod(change)
        elif change.kind == CLAIMS and _name(change.body).startswith(self._prefix):
            self._see_claim(change)

    def _see_native(self, change: Change) -> None:
        """A PodGroup of Kubernetes: its members need as many as it says from now on."""
        name = _name(change.body)
        if change.deed == "DELETED":
            self._natives.pop(name, None)
            return
        self._natives[name] = change.body
        self._minimums.says(change.at, name, change.body)
        for member in self._members.get(name, {}).values():
            self._history.pod(self._up(change.at), self.facts(member, change.at))
        self._time_halves(self._up(change.at))

    def _see_claim(self, change: Change) -> None:
        at = self._up(change.at)
        if change.deed == "DELETED":
            self.devices.claim_gone(at, change.uid)
        else:
            self.devices.claim(at, ClaimFacts.of(change.body), in_order=change.deed != "LISTED")

    def passed(self, now: float) -> None:
        """Time passed without a change."""
        self._history.passed(self._up(now))
        self.devices.passed(self._up(now))

    def _up(self, at: float) -> float:
        """The time on a clock that stands still during outages."""
        now = self._clock
        return now(at) - sum(now(min(at, ended)) - now(began) for began, ended in self._outages if began < at)

    def _see_pod(self, change: Change) -> None:
        self._see_member(change)
        pod = self.facts(change.body, change.at)
        key = pod.gang.key if pod.gang else pod.name
        if change.deed == "DELETED":
            half = key in self._history.half_bound()
            self.losses.went(change.at, change.body, key, half=half, watched=change.watched)
            self.meter.gone(change.at, pod.uid)
            self.waits.gone(pod)
            self._history.gone(self._up(change.at), pod.uid)
            self.devices.pod_gone(self._up(change.at), pod.uid)
        else:
            self.relisted += change.deed == "LISTED"
            self.losses.seen(change.body, key)
            self.meter.pod(change.at, pod)
            asked_at = (change.body["metadata"].get("annotations") or {}).get(ASKED_AT, "")
            self.waits.pod(change.at, pod, asked_at)
            self._history.pod(self._up(change.at), pod)
            self.devices.pod(self._up(change.at), DevicePod.of(change.body))
        self._time_halves(self._up(change.at))

    def _see_member(self, change: Change) -> None:
        """Keep the pod, if it names a PodGroup of Kubernetes."""
        group = _native_of(change.body)
        members = self._members[group] if group else {}
        if change.deed == "DELETED":
            members.pop(change.uid, None)
        else:
            members[change.uid] = change.body
        if any(member["spec"].get("nodeName") for member in members.values()):
            self._minimums.bound(change.at, group)
        else:
            self._minimums.ended(group)

    def _time_halves(self, now: float) -> None:
        """How long gangs stay half bound, also below the grace."""
        half = {*self._history.half_bound()}
        for key in half - {*self._half_since}:
            self._half_since[key] = now
        for key in {*self._half_since} - half:
            self.longest_partial_s = max(self.longest_partial_s, now - self._half_since.pop(key))

    def facts(self, pod: Object, at: float | None = None) -> PodFacts:
        """A pod as the rules see it; its gang may be a PodGroup's. `at`: with what its gang needed then."""
        facts = PodFacts.of(pod)
        if facts.gang is None and (group := _native_of(pod)):
            body = self._natives.get(group)
            now = least_of(body) if body is not None else 0
            needed = now if at is None else self._minimums.needed(at, group)
            return replace(facts, gang=Gang(_native_key(group), needed))
        name = str((pod["metadata"].get("annotations") or {}).get(POD_GROUP, ""))
        if facts.gang is not None or not name:
            return facts
        namespace = pod["metadata"]["namespace"]
        spec = self._groups.get(f"{namespace}/{name}", {}).get("spec") or {}
        return replace(facts, gang=Gang(f"{namespace}/{POD_GROUP}/{name}", int(spec.get("minMember", 0))))

    # --- when all is quiet ----------------------------------------------------------------------

    def fits(self, pods: Iterable[Object], nodes: Iterable[Object]) -> list[Fit]:
        """Gangs of the namespace that wait, though there is room for them."""
        ours = self._ours(pods)
        gangs = {facts.uid: facts.gang for pod in ours if (facts := self.facts(pod)).gang is not None}
        scopes = {}
        for group in self._groups.values():
            key = f"{group['metadata']['namespace']}/{POD_GROUP}/{group['metadata']['name']}"
            scopes[key] = str((group["spec"].get("topologyPolicy") or {}).get("scope", ""))
        for name, group in self._natives.items():
            for constraint in (group["spec"].get("schedulingConstraints") or {}).get("topology") or ():
                scopes[_native_key(name)] = SCOPES_BY_LABEL[constraint["key"]]
        trusted = [node for node in nodes if node["metadata"]["name"] not in self._hostile_nodes]
        return waiting_that_fit(ours, trusted, gangs, scopes)

    def waits_though_fits(self, when: str, fits: Iterable[Fit]) -> None:
        """These gangs had their time and wait still."""
        self._found += [Violation(WAITS, f"{when}: {fit}") for fit in fits]

    # --- the verdict ----------------------------------------------------------------------------

    def verdict(
        self, pods: Iterable[Object], nodes: Iterable[Object], claims: Iterable[Object] = ()
    ) -> Mapping[str, Sequence[str]]:
        """Rule → what broke it, each once: from the history, and from these fresh lists."""
        ours = self._ours(pods)
        claim_facts = [ClaimFacts.of(claim) for claim in self._ours(claims)]
        devices = [*self.devices.found, *twice(claim_facts), *unplanned(map(DevicePod.of, ours), claim_facts)]
        now = judge(map(self.facts, ours), map(NodeFacts.of, nodes))
        missing = self.losses.missing(str(pod["metadata"]["uid"]) for pod in ours)
        violations = [
            *self._history.violations,
            # a waiting replacement does not make the gang partial; only the history can tell
            *(violation for violation in now if RULE_OF.get(violation.rule) != PARTIAL),
            *(Violation(LOST, f"{name} vanished") for name in (*self.losses.lost, *missing)),
            *self._found,
            *(Violation(*wrong) for wrong in devices),
        ]
        verdict: dict[str, list[str]] = {rule: [] for rule in RULES}
        for violation in dict.fromkeys(violations):
            rule = violation.rule if violation.rule in RULES else ALLOCATION
            verdict[RULE_OF.get(violation.rule, rule)].append(str(violation))
        return verdict

    def _ours(self, pods: Iterable[Object]) -> list[Object]:
        return [pod for pod in pods if _name(pod).startswith(self._prefix)]


def _name(body: Object) -> str:
    return f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"


def _native_of(pod: Object) -> str:
    """Return namespace and name of the PodGroup of Kubernetes that the pod names; "" if it names none."""
    name = (pod["spec"].get(SCHEDULING_GROUP) or {}).get("podGroupName", "")
    return f"{pod['metadata']['namespace']}/{name}" if name else ""


def _native_key(group: str) -> str:
    """Return the key of the gang of this PodGroup, as `Submission.key` has it."""
    namespace, _, name = group.partition("/")
    return f"{namespace}/{SCHEDULING_GROUP}/{name}"
