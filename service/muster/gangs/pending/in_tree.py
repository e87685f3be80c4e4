"""In-tree answers: which nodes kube-scheduler's own plugins refuse to a gang's pods, before it is planned.

The planner does not model volumes, resource claims and extenders. The shim asks the plugins about all nodes
(protos, InTreeQuestion). For pods that have preferences, the shim also reports kube-scheduler's scores of the
nodes. This module decides when to ask about a gang, and stores the answers as long as the gang exists.
`refinement` applies the answers to the gang's request. This module makes no call.
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
"""Plugins whose rules the planner knows. The shim asks only the others, so a question would not help."""


@dataclass(slots=True)
class _Record:
    number: int
    """Number of the current question; 0 if no question is current."""
    uids: tuple[str, ...]
    """UIDs of the pods in the question."""
    answer_deadline: float
    """When the gang is planned without answers, in seconds of the inputs' clock."""
    answers: GangAnswers
    answered: bool = False
    version: int = 0
    """Number of times that the answers have changed."""
    used_version: int = 0
    """The `version` when the planner was last asked. If they differ, the planner has not seen all answers."""
    reports: list[InTreeReport] = field(default_factory=list)
    """The parts so far of a report that is not complete yet."""


class InTree:
    """The questions about gangs, and their answers. `nodes` is a live view of the cluster's nodes."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._listening = False
        self._records: dict[str, _Record] = {}
        self._refused_gangs: set[str] = set()
        """Keys of gangs to which a plugin has refused a planned node."""
        self._numbers = itertools.count(1)

    def begin_session(self, answers_in_tree: bool) -> None:
        """Begin a session. `answers_in_tree`: its shim answers questions.

        Without such a shim, old answers are dropped, because they would never be renewed.
        """
        self._listening = answers_in_tree
        if not answers_in_tree:
            self._records.clear()

    def ask(self, gang: Gang, answer_deadline: float) -> AskInTree | None:
        """Return the question to ask before the gang is planned.

        Return None if there is nothing to ask, or if a question about the same pods was asked before.
        `answer_deadline`: when the gang is planned without answers, in seconds of the inputs' clock.
        """
        uids = self._uids_to_ask_about(gang)
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
        if record is None or not self._listening or not self._uids_to_ask_about(gang):
            return None
        return self._question(gang, record)

    def awaits_until(self, gang: str) -> float:
        """Return until when the gang waits for answers; 0 if it waits for none."""
        record = self._records.get(gang)
        return 0.0 if record is None or record.answered or not self._listening else record.answer_deadline

    def note_refusal(self, gang: Gang, plugin: str) -> None:
        """Note that a plugin has refused a planned node.

        Before the next plan, the shim is asked about all pods of the gang, whatever they request. An open
        question stays open. Otherwise each refusal would replace it, and a slow answer would always be stale.
        """
        if plugin and plugin not in MODELLED:
            self._refused_gangs.add(gang.key)
            if (record := self._records.get(gang.key)) is not None and record.answered:
                record.number, record.uids = 0, ()

    def take_report(self, report: InTreeReport) -> bool:
        """Take in a report. Return whether it changes the nodes or GPUs that the gang may have.

        Scores do not change them. Nor does a first answer that refuses nothing, unless a plugin has refused a
        planned node before.

        Raises:
            StaleError: the report answers no open question, or is a part out of order.
        """
        record = self._records.get(report.gang)
        if record is None or record.number != report.question:
            raise StaleError(f"gang {report.gang}: question {report.question} is not the current one")
        if report.part == 0:
            record.reports = []
        if report.part != len(record.reports):
            raise StaleError(f"gang {report.gang}: part {report.part} does not follow the one before")
        record.reports.append(report)
        if report.has_more:
            return False
        reports, record.reports = record.reports, []
        answers = {
            record.uids[pod]: answer for part in reports for pods, answer in part.answers for pod in pods
        }
        distinct = {id(answer): answer for answer in answers.values()}
        lists = sum(len(answer.devices) for answer in distinct.values())
        if lists > MAX_GPU_LISTS:
            without_lists = {
                number: replace(answer, devices=(), groups=()) for number, answer in distinct.items()
            }
            answers = {uid: without_lists[id(answer)] for uid, answer in answers.items()}
        old_answers, new_answers = record.answers, record.answers.renew(answers, lists)
        record.answers, record.answered = new_answers, True
        if report.gang in self._refused_gangs:
            changed = new_answers.shared_answers != old_answers.shared_answers
        else:
            changed = new_answers.stated_answers != old_answers.stated_answers
        changed |= lists != old_answers.gpu_lists and lists > MAX_GPU_LISTS
        record.version += changed
        return changed

    def forget(self, gang: Gang) -> AskInTree | None:
        """Forget a gang. Return an empty question, which takes back the last question; None if none was
        asked."""
        record = self._records.pop(gang.key, None)
        self._refused_gangs.discard(gang.key)
        if record is None or not self._listening:
            return None
        return AskInTree(gang.key, next(self._numbers), gang.group.gang.namespace, ())

    def mark_used(self, gang: str) -> None:
        """Note that the planner is asked with the present answers."""
        if (record := self._records.get(gang)) is not None:
            record.used_version = record.version

    def has_new_answers(self, gang: str) -> bool:
        """Return whether the answers have changed since the planner was asked."""
        record = self._records.get(gang)
        return record is not None and record.version != record.used_version

    def answers(self, gang: str) -> GangAnswers:
        """Return the present answers for a gang."""
        record = self._records.get(gang)
        return record.answers if record is not None else GangAnswers(self._nodes)

    def _uids_to_ask_about(self, gang: Gang) -> tuple[str, ...]:
        all_pods = gang.key in self._refused_gangs
        return tuple(sorted(pod.uid for pod in gang.group.unbound if all_pods or _needs_question(pod)))

    def _question(self, gang: Gang, record: _Record) -> AskInTree:
        """Note a new question about the gang as the current one, and return it."""
        record.number, record.uids = next(self._numbers), self._uids_to_ask_about(gang)
        record.answered, record.reports = False, []
        names = {pod.uid: pod.name for pod in gang.group.unbound}
        pods = tuple((names[uid], uid) for uid in record.uids)
        return AskInTree(gang.key, record.number, gang.group.gang.namespace, pods)


def _needs_question(pod: Pod) -> bool:
    """Return whether plugins may know something about the pod that the planner does not."""
    return pod.preferences or pod.device_claims or bool(pod.peers.volume_claims)
