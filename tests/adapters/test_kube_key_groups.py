"""Keys in groups: what is forgotten, and when."""

from __future__ import annotations

from muster.adapters.kube.key_groups import KeyGroups


def test_a_key_is_in_one_group_and_a_group_ends_with_its_last_key() -> None:
    grouped = KeyGroups[str, str]()
    assert [grouped.put(pod, "a") for pod in ("p", "q")] == [None, None]
    assert grouped.put("p", "b") == "a"
    assert (list(grouped.keys_of("a")), list(grouped.keys_of("b"))) == (["q"], ["p"])
    assert grouped.put("q", None) == "a"
    assert (list(grouped.groups), grouped.group_of("p"), grouped.group_of("q")) == (["b"], "b", None)
    assert grouped.put("p", None) == "b"
    assert (list(grouped.groups), list(grouped.keys_of("b")), grouped.group_of("p")) == ([], [], None)
