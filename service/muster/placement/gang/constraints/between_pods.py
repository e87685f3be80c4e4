"""Translate the constraints between pods that are in the pods' own fields. Each kind has a module of its own.

A constraint whose domains are single nodes is kept without the model, so it costs nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

from muster.domain.constraints import Affinity, AntiAffinity, Spread
from muster.domain.reasons import Cause
from muster.domain.request import Request
from muster.placement.gang.constraints import affinity, anti_affinity, spread
from muster.placement.gang.constraints.constraint import ByName, Findings
from muster.placement.gang.existing import ExistingMembers
from muster.placement.gang.rules import Rules

KINDS: Mapping[type, ModuleType] = {AntiAffinity: anti_affinity, Affinity: affinity, Spread: spread}
"""The module of each kind. It has `add(rules, rule, name)` and `cause(rule, fit, needed, even_empty)`."""


class _BetweenPods(ByName):
    field, order = "constraints", 50

    def add(self, rules: Rules, request: Request, existing: ExistingMembers) -> None:
        for i, rule in enumerate(request.constraints):
            KINDS[type(rule)].add(rules, rule, f"between pods {i}")

    def causes(self, findings: Findings, role: str, what: str) -> Iterator[Cause]:
        rule = next(rule for rule in findings.request.constraints if rule.name == what)
        # Without running pods that the rule avoids or counts, it may hold. Pods that it looks for stay.
        even_empty = findings.even_empty and (isinstance(rule, Affinity) or not rule.existing)
        yield KINDS[type(rule)].cause(rule, *findings.fit(), even_empty)


BETWEEN_PODS = _BetweenPods()
