"""Compare in-tree answers. They may have thousands of nodes, so equal ones are found once for a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.gangs.messages.calls import InTreeAnswer

NOTHING = InTreeAnswer()
"""The answer for a pod that was not asked about."""


def reuse_equal(
    found: Mapping[str, InTreeAnswer], before: Mapping[str, InTreeAnswer]
) -> dict[str, InTreeAnswer]:
    """Return pod UID → answer, with the object of `before` for each answer that equals it.

    Large answers of many pods are then compared once.
    """
    compared: dict[tuple[int, int], bool] = {}
    reused = {}
    for uid, new in found.items():
        old = before.get(uid, NOTHING)
        pair = (id(new), id(old))
        if pair not in compared:
            compared[pair] = new == old
        reused[uid] = old if compared[pair] else new
    return reused


def not_empty(answers: Mapping[str, InTreeAnswer]) -> dict[str, InTreeAnswer]:
    """Return the answers that state something."""
    return {uid: answer for uid, answer in answers.items() if answer != NOTHING}


def kinds_of(answers: Iterable[InTreeAnswer]) -> dict[int, int]:
    """Return id() of each answer, and of the empty one → that of the first equal one.

    Answers are compared if their hashes are equal.
    """
    kinds, by_hash = dict[int, int](), dict[int, list[InTreeAnswer]]()
    for answer in {id(each): each for each in (NOTHING, *answers)}.values():
        alike = by_hash.setdefault(answer.hash_of_all(), [])
        first = next((each for each in alike if each == answer), answer)
        if first is answer:
            alike.append(answer)
        kinds[id(answer)] = id(first)
    return kinds
