"""Refused gangs whose victims are to be found, and the last answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from muster.gangs.record.gang import Gang
from muster.gangs.record.victims import VictimsAnswer, VictimsQuestion

MAX_ANSWERS = 256
"""Number of answers that are shared. Besides, each gang keeps its own."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """The question whose answer is not there yet: its number and its gang's key."""

    number: int
    gang: str
    question: VictimsQuestion


class Victims:
    """The gangs that wait for a question, by namespace. The namespaces take turns.

    `is_there` returns whether the unit with this key is still there.
    """

    def __init__(self, is_there: Callable[[str], bool]) -> None:
        self.open: OpenQuestion | None = None
        self._is_there = is_there
        self._waiting: dict[str, dict[str, VictimsQuestion]] = {}
        self._answers: OrderedDict[VictimsQuestion, VictimsAnswer] = OrderedDict()

    @property
    def any_waits(self) -> bool:
        """Return whether a gang waits for a question."""
        return bool(self._waiting)

    def waits(self, gang: Gang) -> bool:
        """Return whether the gang waits for a question."""
        return gang.key in self._waiting.get(gang.name[0], ())

    def add(self, gang: Gang, question: VictimsQuestion) -> None:
        """Add a gang, or replace its question. A gang that waits already keeps its turn."""
        self._waiting.setdefault(gang.name[0], {})[gang.key] = question

    def remove(self, gang: Gang) -> None:
        """Remove a gang, if it waits."""
        by_gang = self._waiting.get(gang.name[0], {})
        by_gang.pop(gang.key, None)
        if not by_gang:
            self._waiting.pop(gang.name[0], None)

    def pop(self) -> tuple[str, VictimsQuestion]:
        """Remove and return the next gang's key, and its question. Its namespace comes last from now on."""
        namespace, by_gang = next(iter(self._waiting.items()))
        del self._waiting[namespace]
        key = next(iter(by_gang))
        question = by_gang.pop(key)
        if by_gang:
            self._waiting[namespace] = by_gang
        return key, question

    def keep(self, answer: VictimsAnswer) -> None:
        """Keep an answer for gangs with an equal question."""
        self._answers[answer.question] = answer
        self._answers.move_to_end(answer.question)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def answer(self, question: VictimsQuestion, last: VictimsAnswer | None = None) -> VictimsAnswer | None:
        """Return the kept answer, or the gang's `last` one, if its victims are still there."""
        for answer in (self._answers.get(question), last):
            if answer is None or answer.question != question:
                continue
            if all(map(self._is_there, answer.units)):
                return answer
        return None
