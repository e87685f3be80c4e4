"""Which changes of one pod leave its gang where it is, so that a gang of thousands is not counted anew for
each of its pods that comes, is bound or goes."""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.pod import Pod
from muster.gangs.gang import Gang
from muster.gangs.halves import is_half
from muster.gangs.life import Phase

_MAY_LEAVE = (Phase.COLLECTING, Phase.INVALID, Phase.PLANNING, Phase.UNPLACEABLE)
"""Phases of which nothing is void when a member goes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One pod's: as it was known and as it is, None where it was not known or is gone. `there`: how many
    present pods bear its gang's name now, and its owners where others bear it too."""

    before: Pod | None
    after: Pod | None
    there: int

    def leaves_in_place(self, gang: Gang) -> bool:
        """Whether the gang is where it was, though not all that is known of its members holds any more."""
        match gang.phase:
            case Phase.COLLECTING if gang.group.waits_for is not None:
                if not 0 < self.there < gang.group.needed:
                    return False
                if self.after is None:
                    return True
                # Of whichever owner, while nothing runs: whose it is is counted when enough are there.
                return self.comes_alike(gang) if gang.group.bound else self._alike(gang)
            case Phase.RUNNING if not gang.group.unbound:
                return self.there > 0 and (self.after is None or bool(self.after.node))
            case _:
                return False

    def is_one_of_many(self, gang: Gang) -> bool:
        """Whether others may follow it, and the gang need not be counted before they have: its number is
        open, or it is ill-formed whatever comes."""
        if gang.phase is Phase.GIVEN_UP or is_half(gang):
            return False
        if gang.phase is not Phase.INVALID and (not gang.group.elastic or gang.group.waits_for is not None):
            return False
        return self._joins(gang) or (gang.phase in _MAY_LEAVE and self.leaves())

    def leaves(self) -> bool:
        """Whether a member that waits goes, and others stay."""
        return (
            self.there > 0
            and self.before is not None
            and self.before.present
            and not self.before.node
            and (self.after is None or not (self.after.present or self.after.node))
        )

    def comes_alike(self, gang: Gang) -> bool:
        """Whether the pod says of its gang what one of the others says."""
        return self._comes(gang) and self._alike(gang)

    def _alike(self, gang: Gang) -> bool:
        return (
            self.after is not None
            and self.after.present
            and not self.after.node
            and not self.after.causes
            and self.after.claim in gang.group.claims
        )

    def _joins(self, gang: Gang) -> bool:
        if self.before is not None and self.before.present:
            return False
        return self._comes(gang) if gang.phase is Phase.INVALID else self.comes_alike(gang)

    def _comes(self, gang: Gang) -> bool:
        return (
            self.after is not None
            and self.after.present
            and not self.after.node
            and self.after.owner in gang.group.owners
        )
