"""Which changes of one pod need no count of its gang.

Without this, a gang of thousands would be counted again for each pod that comes, is bound or goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.domain.pod import Pod
from muster.gangs.record.gang import Gang
from muster.gangs.record.partial import is_partially_bound
from muster.gangs.record.phases import Phase

MAY_LEAVE = (Phase.COLLECTING, Phase.INVALID, Phase.PLANNING, Phase.UNPLACEABLE)
"""Phases in which a member that goes voids nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one pod: `before` and `after`, None if it was not known or is gone.

    `there`: how many present pods have the gang's name, and its owners if pods of other owners have the name.
    """

    before: Pod | None
    after: Pod | None
    there: int

    def leaves_in_place(self, gang: Gang) -> bool:
        """Return whether the gang stays in its phase, although its counts are old."""
        match gang.phase:
            case Phase.COLLECTING if gang.group.waits_for is not None:
                if not 0 < self.there < gang.group.needed:
                    return False
                if self.after is None:
                    return True
                # While nothing runs, the owner does not matter: owners are assigned when enough are there.
                return self.comes_alike(gang) if gang.group.bound else self._alike(gang)
            case Phase.RUNNING if not gang.group.unbound:
                return self.there > 0 and (self.after is None or bool(self.after.node))
            case _:
                return False

    def is_one_of_many(self, gang: Gang) -> bool:
        """Return whether other pods may follow, so that the gang is counted after them.

        That is so if the gang's size is open, or if the gang is ill-formed whatever comes.
        """
        if gang.phase is Phase.GIVEN_UP or is_partially_bound(gang):
            return False
        if gang.phase is not Phase.INVALID and (not gang.group.elastic or gang.group.waits_for is not None):
            return False
        if self.there == gang.group.size and not gang.group.ambiguous:
            return False  # the last one that is expected
        return self._joins(gang) or (gang.phase in MAY_LEAVE and self.leaves())

    def leaves(self) -> bool:
        """Return whether a waiting member goes while others stay."""
        return (
            self.there > 0
            and self.before is not None
            and self.before.present
            and not self.before.node
            and (self.after is None or not (self.after.present or self.after.node))
        )

    def comes_alike(self, gang: Gang) -> bool:
        """Return whether a new pod asks for its gang the same as another member."""
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
