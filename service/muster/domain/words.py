"""Words that sentences share: amounts with units, plurals, members and roles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache

LISTED = 4
"""Number of things that one sentence lists. The sentence gives the number of further things."""
GPU_MEMORY = "GPU memory"
"""In causes, the resource of shared GPUs, in GiB."""
WHO_TELLS = "the node annotation GPU_TOPOLOGY or the node label gpu.topology/interconnect would tell"
"""Sources of a node's links, for a sentence about a node without links: docs/links.md."""

_UNITS_OF_TIME = (("d", 86_400), ("h", 3_600), ("min", 60))
_DIGITS = re.compile(r"(\d+)")


def in_bytes(resource: str) -> bool:
    """Return whether amounts of the resource are bytes."""
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def gpus_with(units: int) -> str:
    """Return the name in causes of GPUs with this much memory for slices."""
    return f"GPUs of {units} GiB"


def the_role(role: str) -> str:
    """Return "role r", or "the gang" for an unnamed role: then the gang has one role."""
    return f"{'roles' if ', ' in role else 'role'} {role}" if role else "the gang"


def of_role(role: str) -> str:
    """Return " of role r"; "" for an unnamed role."""
    return f" of role {role}" if role else ""


def for_role(role: str) -> str:
    """Return " for role r"; "" for an unnamed role."""
    return f" for role {role}" if role else ""


def counted_noun(word: str, count: int) -> str:
    """Return "1 node", "2 nodes"."""
    return f"{count} {plural(word, count)}"


def whole_units(seconds: float) -> tuple[int, str]:
    """Return a time in the largest unit that it lasts twice: (119, "s"), (90, "min"), (36, "h"), (3, "d")."""
    for unit, length in _UNITS_OF_TIME:
        if seconds >= 2 * length:
            return int(seconds // length), unit
    return int(seconds), "s"


def plural(word: str, count: int) -> str:
    """Return the noun in the form that follows this count."""
    return word if count == 1 else f"{word}s"


def plural_verb(verb: str, count: int) -> str:
    """Return the verb in the form that follows this number of subjects."""
    return f"{verb}s" if count == 1 else verb


def so_many_fit(fit: int | None, members_needed: int, even_empty: bool = False) -> str:
    """Return a clause that says how many members fit, if this is known."""
    number_clause = (
        "" if fit is None else f": {fit or 'none'} of {members_needed} {'fit' if fit > 1 else 'fits'}"
    )
    return f"{number_clause}{if_empty(even_empty)}"


def if_empty(even_empty: bool) -> str:
    """Return a clause that says whether the cause also holds on empty nodes."""
    return ", even if nothing else ran" if even_empty else ""


def or_wait(until: str, even_empty: bool) -> str:
    """Return a clause that advises to wait; "" if the cause also holds on empty nodes, because waiting does
    not help."""
    return "" if even_empty else f", or wait until {until}"


def amount(resource: str, amount: int) -> str:
    """Return an amount with its unit."""
    of_unit = "of " if resource == GPU_MEMORY or in_bytes(resource) else ""
    name = resource
    if amount == 1:
        name = "pod" if resource == "pods" else resource.replace("GPUs of", "GPU of", 1)
    return f"{number(resource, amount)} {of_unit}{name}"


def number(resource: str, amount: int) -> str:
    """Return an amount in its unit, as a number.

    `amount`: cpu in thousandths of a core, memory in bytes.
    """
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if in_bytes(resource):
        return f"{amount / 2**30:.4g} GiB"
    if resource == GPU_MEMORY:
        return f"{amount} GiB"
    return str(amount)


def quote(value: str) -> str:
    """Return a user's text in quotation marks, cut if it is long."""
    return f'"{value[:60]}…"' if len(value) > 60 else f'"{value}"'


def and_more(count: int) -> str:
    """Return the clause for the things that a list of `LISTED` leaves out; "" if it leaves out none."""
    return f" and {count - LISTED} more" if count > LISTED else ""


def list_names(names: Sequence[str], limit: int = LISTED) -> str:
    """Return the first few names, and how many more there are."""
    ending = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + ending


def such_pods(first: str, pods: int) -> str:
    """Return the name of the only pod, or the number of pods and the first name."""
    return first if pods == 1 else f"{pods} pods ({first} is the first)"


@lru_cache(maxsize=1 << 16)
def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that puts worker-2 before worker-10. Text and numbers alternate in it."""
    pieces: list[str | int] = [*_DIGITS.split(name)]
    pieces[1::2] = map(int, pieces[1::2])
    return tuple(pieces), name


def nearest(word: str, words: Iterable[str], similarity: float = 0.6) -> str:
    """Return the known word that this word resembles; "" if it resembles none, or is known itself."""
    known_words = sorted(set(words))  # of equally near words, the same in each process
    matches = [] if word in known_words else get_close_matches(word, known_words, 1, similarity)
    return matches[0] if matches else ""


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a clause with the word that was probably meant; "" if there is none."""
    nearest_word = nearest(word, words)
    return f"; did you mean {nearest_word}?" if nearest_word else ""
