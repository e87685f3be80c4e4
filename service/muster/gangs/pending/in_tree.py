"""In-tree answers: which nodes kube-scheduler's own plugins refuse to a gang's pods, before it is planned.

The planner does not model volumes, resource claims and extenders. The shim asks the plugins about all nodes
(protos, InTreeQuestion). For pods that have preferences it also reports kube-scheduler's scores of the nodes.
This module decides when to ask about a gang, and stores the answers as long as the gang exists. `refinement`
turns answers into roles, room, scores and excluded nodes. This module makes no call.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from muster.domain.node import Node
from muster.domain.pod import Pod
from muster.gangs.messages.calls import InTreeReport, StaleError
from muster.gangs.messages.instructions import AskInTree
from muster.gangs.pending.answers import MAX_GPU_LISTS
from muster.gangs.pending.refinement import GangAnswers
from muster.gangs.record.gang import Gang

MODELLED = frozenset(
    {
        "NodeName",
        "NodeUnschedulable",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "PodTopologySpread",
        "InterPodAffinity",
    }
)
"""Plugins whose rules the planner knows: the shim does not ask them, so a question would not help."""


@dataclass(slots=True)
class _Record:
    """The questions about one gang, and their answers."""

    number: int
    """Number of the current question; 0 if no question is current."""
    uids: tuple[str, ...]
    """UIDs of the pods in the question."""
    answer_deadline: float
    """When the gang is planned without answers, in seconds of the inputs' clock."""
    answers: GangAnswers
    answered: bool = False
    version: int = 0
    """Rises when the answers change."""
    used: int = 0
    """The version with which the planner was last asked."""
    parts: list[InTreeReport] = field(default_factory=list)
    """Parts of a report that is not complete yet."""


class InTree:
    """Questions and answers, by gang. `nodes` is a live view of the cluster's nodes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._listening = False
        self._records: dict[str, _Record] = {}
        self._suspects: set[str] = set()
        self._numbers = itertools.count(1)

    def begin(self, answers_in_tree: bool) -> None:
        """Begin a session. `answers_in_tree`: its shim answers questions.

        If it does not, old answers are dropped, because they would never be renewed.
        """
        self._listening = answers_in_tree
        if not answers_in_tree:
            self._records.clear()

    def ask(self, gang: Gang, answer_deadline: float) -> AskInTree | None:
        """Return the question to ask before the gang is planned.

        Return None if there is nothing to ask, or if the question was asked before. `answer_deadline`: when
        the gang is planned without answers, in seconds of the inputs' clock.
        """
        uids = self._concerned(gang)
        record = self._records.get(gang.key)
        if not self._listening or not uids or (record is not None and set(uids) <= set(record.uids)):
            return None
        if record is None:
            record = self._records[gang.key] = _Record(0, (), answer_deadline, GangAnswers(self._nodes))
        record.answer_deadline = answer_deadline
        return self._question(gang, record)

    def ask_again(self, gang: Gang) -> AskInTree | None:
        """Return the question again for a gang with a question in an earlier session; None for other gangs.

        Its old answers hold until the new ones come.
        """
        record = self._records.get(gang.key)
        if record is None or not self._listening or not self._concerned(gang):
            return None
        return self._question(gang, record)

    def awaits(self, gang: str) -> float:
        """Return until when the gang waits for answers; 0 if it does not."""
        record = self._records.get(gang)
        return 0.0 if record is None or record.answered or not self._listening else record.answer_deadline

    def note_refusal(self, gang: Gang, plugin: str) -> None:
        """Note that a plugin has refused a planned node.

        Before the next plan, the shim is asked about all pods of the gang, whatever they request. A question
        without an answer stays open. Otherwise a new question after each refusal would void a slow answer.
        """
        if plugin and plugin not in MODELLED:
            self._suspects.add(gang.key)
            if (record := self._records.get(gang.key)) is not None and record.answered:
                record.number, record.uids = 0, ()

    def take(self, report: InTreeReport) -> bool:
        """Take in a report. Return whether it changes the nodes or GPUs that the gang may have.

        Scores alone change neither. Nor does a first answer that refuses nothing, unless a plugin has refused
        a planned node before.

        Raises:
            StaleError: the report answers no open question, or is a part out of order.
        """
        record = self._records.get(report.gang)
        if record is None or record.number != report.question:
            raise StaleError(f"gang {report.gang}: question {report.question} is not the current one")
        if report.part == 0:
            record.parts = []
        if report.part != len(record.parts):
            raise StaleError(f"gang {report.gang}: part {report.part} does not follow the one before")
        record.parts.append(report)
        if report.has_more:
            return False
        parts, record.parts = record.parts, []
        answers = {
            record.uids[pod]: answer for part in parts for pods, answer in part.answers for pod in pods
        }
        distinct = {id(answer): answer for answer in answers.values()}
        lists = sum(len(answer.devices) for answer in distinct.values())
        if lists > MAX_GPU_LISTS:
            bare = {number: replace(answer, devices=(), groups=()) for number, answer in distinct.items()}
            answers = {uid: bare[id(answer)] for uid, answer in answers.items()}
        before, after = record.answers, record.answers.renew(answers, lists)
        record.answers, record.answered = after, True
        suspect = report.gang in self._suspects
        changed = after.shared_answers != before.shared_answers if suspect else after.stated != before.stated
        changed |= lists != before.gpu_lists and lists > MAX_GPU_LISTS
        record.version += changed
        return changed

    def forget(self, gang: Gang) -> AskInTree | None:
        """Forget a gang. Return an empty question, which takes back its last one; None if no question was
        asked."""
        record = self._records.pop(gang.key, None)
        self._suspects.discard(gang.key)
        if record is None or not self._listening:
            return None
        return AskInTree(gang.key, next(self._numbers), gang.group.gang.namespace, ())

    def mark_used(self, gang: str) -> None:
        """Note that the planner is asked with the present answers."""
        if (record := self._records.get(gang)) is not None:
            record.used = record.version

    def outdated(self, gang: str) -> bool:
        """Return whether the answers have changed since the planner was asked."""
        record = self._records.get(gang)
        return record is not None and record.version != record.used

    def answers(self, gang: str) -> GangAnswers:
        """Return the present answers for a gang."""
        record = self._records.get(gang)
        return record.answers if record is not None else GangAnswers(self._nodes)

    def _concerned(self, gang: Gang) -> tuple[str, ...]:
        suspect = gang.key in self._suspects
        return tuple(sorted(pod.uid for pod in gang.group.unbound if suspect or _concerns(pod)))

    def _question(self, gang: Gang, record: _Record) -> AskInTree:
        record.number, record.uids, record.answered = next(self._numbers), self._concerned(gang), False
        record.parts = []
        names = {pod.uid: pod.name for pod in gang.group.unbound}
        pods = tuple((names[uid], uid) for uid in record.uids)
        return AskInTree(gang.key, record.number, gang.group.gang.namespace, pods)


def _concerns(pod: Pod) -> bool:
    """Return whether plugins may know something about the pod that the planner does not."""
    return pod.preferences or pod.device_claims or bool(pod.peers.volume_claims)
