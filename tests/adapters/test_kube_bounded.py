"""Any JSON text becomes one that a decoder with a small stack reads, and nothing else about it changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.adapters.kube.lenient import bound_depth, salvage
from muster.dialects.objects import PodObject

STRINGS = st.text(max_size=6) | st.sampled_from(['"', "\\", '\\"', "{[", "]}", "\\\\", "\\u0041", "é", "😀"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=30,
)


def cut(value: Any, depth: int) -> Any:
    """What `cut_to_limits` is to make of a value, by recursion."""
    if isinstance(value, list | dict) and depth == 0:
        return 0
    if isinstance(value, list):
        return [cut(inner, depth - 1) for inner in value]
    if isinstance(value, dict):
        return {key: cut(inner, depth - 1) for key, inner in value.items()}
    return value


@given(VALUES, st.integers(0, 4), st.booleans(), st.sampled_from([1, 2, 3, 7, 1 << 20]))
def test_what_lies_deeper_is_zero_and_all_else_is_as_it_was(
    value: Any, depth: int, ascii_only: bool, size: int
) -> None:
    """In slices of any size."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("muster.adapters.kube.lenient.SLICE", size)
        patched.setattr("muster.adapters.kube.lenient.MAX_DEPTH", depth)
        assert json.loads(bound_depth(text)) == cut(value, depth)


@given(st.lists(st.sampled_from([r"\ud83d", r"\ude00", r"\uD800", r"\uDfFf", r"\\", r"\"", "a", r"\u0041"])))
def test_half_a_pair_is_replaced_and_a_whole_one_is_not(parts: list[str]) -> None:
    text = f'{{"a":"{"".join(parts)}"}}'.encode()
    expected = json.loads(text)["a"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    # Python's decoder makes one mark of half a pair as well
    assert msgspec.json.decode(bound_depth(text))["a"] == expected


@given(st.binary(max_size=40))
def test_nothing_is_raised_for_what_is_no_json(text: bytes) -> None:
    bound_depth(text)


@pytest.mark.parametrize("depth", [65, 1_200, 9_000, 250_000])
@pytest.mark.parametrize("brackets", [('{"a":', "}"), ("[", "]"), ('[{"a":', "}]")])
def test_any_depth(depth: int, brackets: tuple[str, str]) -> None:
    text = f'{{"deep":{brackets[0] * depth}1{brackets[1] * depth},"after":3}}'.encode()
    assert msgspec.json.decode(bound_depth(text))["after"] == 3


def test_what_was_cut_off_stays_no_json() -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(bound_depth(b'{"a":' * 100))


def test_bytes_that_are_no_utf_8() -> None:
    assert msgspec.json.decode(bound_depth(b'{"a":"\xff"}')) == {"a": "�"}


@pytest.mark.parametrize("text", [lambda value: json.dumps(value).encode(), lambda value: value])
def test_all_that_can_be_read_of_a_pod_is(text: Callable[[Any], object]) -> None:
    broken = {
        "metadata": {"uid": "u", "labels": {"good": "1", "bad": 2}},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": 3, "resources": {"limits": {"gpu": "1", "x": []}}}, 4],
        },
    }
    pod, lost = salvage(PodObject, text(broken))
    assert (pod.metadata.uid, pod.metadata.labels, pod.spec.node_name) == ("u", {"good": "1"}, "n")
    assert pod.spec.containers is not None
    assert pod.spec.containers[0].resources is not None
    assert pod.spec.containers[0].resources.limits == {"gpu": "1"}
    assert [field.path for field in lost] == [
        "metadata.labels.bad",
        "spec.containers[0].name",
        "spec.containers[0].resources.limits.x",
        "spec.containers[1]",
    ]


@given(VALUES)
def test_of_any_json_something_is_salvaged(value: Any) -> None:
    from_json, lost = salvage(PodObject, json.dumps(value).encode())
    from_value, lost_of_value = salvage(PodObject, value)
    assert from_value == from_json
    assert [field.path for field in lost_of_value] == [field.path for field in lost]
