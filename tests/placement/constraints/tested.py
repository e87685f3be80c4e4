"""What a module of this folder tells about its constraint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from muster.domain.constraints import MorePerPart, PerScope, TooFewParts
from muster.domain.reasons import Cause, Relaxation


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A constraint, written apart from the planner: brute force counts by `kept`."""

    kind: type[PerScope]
    cause: type[TooFewParts]
    relaxation: type[MorePerPart]

    word: str
    """In drawn gangs: "<word> rack=2 node=1"."""
    feature: str
    """Of random worlds; it draws `numbers`."""
    numbers: st.SearchStrategy[int]
    kept: Callable[[int, int], bool]
    """Given the number and the members of a part that gets one: whether the part keeps the number."""

    families: Mapping[str, tuple[str, ...]]
    """Random worlds with the features that go with it."""
    read: Mapping[str, tuple[str, tuple[PerScope, ...]]]
    """The annotation's text, and what it says."""
    misread: Mapping[str, str]
    """Texts that are refused."""
    plans: Mapping[str, tuple[str, str, str, str, str]]
    """As in test_verify: cluster, gang, a good plan, a bad one, and what is wrong with it."""
    refused: Mapping[str, tuple[str, str, tuple[Cause, ...], tuple[Relaxation, ...]]]
    """As in test_causes: cluster, gang, causes, and what helps."""
    sentences: tuple[tuple[tuple[Cause, ...], str], ...]
    helps: tuple[tuple[Relaxation, str], ...]
    found: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Clusters and gangs for which the planner once was not as good as brute force."""
