"""Rows of tables of gangs that fit."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.decision import Placed
from muster.domain.sentences import sentence
from muster.placement.place import place
from tests.placement.drawings import cluster, gang, plan


@dataclass(frozen=True)
class Fits:
    """Placed, proven best, as these places say."""

    cluster: str
    gang: str
    at: str

    def check(self) -> None:
        snapshot, request = cluster(self.cluster), gang(self.gang)
        decision = place(snapshot, request)
        assert isinstance(decision, Placed), sentence(decision)
        assert decision.optimal
        assert decision.members == plan(snapshot, request, self.at).members, decision.members
