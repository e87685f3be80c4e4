"""What users write is shown with its control characters escaped, in every sentence of the service."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.dialects.objects import PodObject
from muster.dialects.pods import pods
from muster.domain.causes.not_planned import MembersMissing
from muster.domain.decision import Unplaceable
from muster.domain.printable import printable
from muster.domain.reasons import Cause, Relaxation, kinds_of
from muster.domain.request import GangId
from muster.domain.sentences import MAX_CHARACTERS, sentence, unhealthy_sentence

EVIL = {
    "ANSI": "\x1b[2J\x1b[31mall fine",
    "line breaks": "a\r\nfake: line\u2028\u2029\x85",
    "bidi marks": "\u202egnp\u2066\u200f",
    "NUL": "\0",
    "half a pair": "\ud800 \udfff",
    "a window title": "\x1b]0;pwn\x07",
    "tags, private use": "\U000e0001\ue000\ufeff",
}
ANY = st.text(st.characters(exclude_categories=()) | st.sampled_from("".join(EVIL.values())), max_size=40)


def harmless(text: str) -> bool:
    text.encode()  # no half of a pair
    return all(
        character.isprintable() or character.isspace() for character in text
    ) and text.splitlines() == [text]


@given(ANY)
def test_what_is_shown_is_one_harmless_line(text: str) -> None:
    assert not text or harmless(printable(text))
    assert printable(printable(text)) == printable(text)


@given(ANY, st.integers(1, 30))
def test_it_has_as_many_characters_as_it_may(text: str, at_most: int) -> None:
    short = printable(text, at_most)
    assert len(short) <= at_most
    assert short == printable(text) or printable(text).startswith(short[:-1])
    assert short == printable(text) or short.endswith("…")


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_letters_of_all_scripts_stay(text: str) -> None:
    assert printable(text) == text


PLACES = {
    "an annotation": {"annotations": {"gpu.topology/scope": "EVIL"}},
    "an annotation's name": {"annotations": {"gpu.topology/EVIL": "x"}},
    "a label": {"labels": {"gpu-topology": "g", "gpu-topology-replica": "EVIL"}},
    "KAI's policy": {"annotations": {"scheduling.run.ai/topology-policy": "EVIL"}},
    "two gangs": {
        "labels": {"gpu-topology": "EVIL", "gpu-topology-replica": "2", "scheduling.x-k8s.io/pod-group": "h"}
    },
}


@pytest.mark.parametrize("evil", [name for name in EVIL if name != "half a pair"])
@pytest.mark.parametrize("place", PLACES)
def test_a_pods_causes(place: str, evil: str) -> None:
    metadata = json.loads(json.dumps(PLACES[place]).replace("EVIL", json.dumps(EVIL[evil])[1:-1]))
    container = {"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    item = {
        "metadata": {"name": "x", "namespace": "n", "uid": "x", **metadata},
        "spec": {"schedulerName": "muster", "containers": [container]},
    }
    pod = pods.read(msgspec.json.decode(json.dumps(item), type=PodObject))
    assert pod.causes
    assert harmless(sentence(pod.causes))


def example(kind: Any) -> Any:
    """One cause or relaxation, hostile in all its texts."""
    values: dict[str, Any] = {}
    evil = "".join(EVIL.values())
    for field in fields(kind):
        name = str(field.type)
        if name.startswith("tuple[tuple[int"):
            values[field.name] = ((2, evil),)
        elif name.startswith("tuple[tuple[str, int"):
            values[field.name] = ((evil, 2),)
        elif name.startswith("tuple[tuple[str"):
            values[field.name] = ((evil, evil),)
        elif name.startswith("tuple[str"):
            values[field.name] = (evil, evil)
        elif name.startswith("str"):
            values[field.name] = evil
        else:
            values[field.name] = 2
    return kind(**values)


@pytest.mark.parametrize("kind", kinds_of(Cause).values(), ids=lambda kind: kind.__name__)
def test_each_cause(kind: Any) -> None:
    text = sentence((example(kind),))
    assert harmless(text)
    assert len(text) <= MAX_CHARACTERS


@pytest.mark.parametrize("kind", kinds_of(Relaxation).values(), ids=lambda kind: kind.__name__)
def test_each_relaxation(kind: Any) -> None:
    cause = MembersMissing(1, 2)
    assert harmless(sentence(Unplaceable(GangId("n", "d", "g"), (cause,), (example(kind),))))


def test_pods_on_unhealthy_gpus() -> None:
    assert harmless(unhealthy_sentence(3, [f"n/{evil}" for evil in EVIL.values()]))
