"""What is remembered of pods that are gone is small, however large they were."""

from __future__ import annotations

from typing import Any

import pytest

from muster.dialects import peers, quantities, requests
from muster.dialects.objects import (
    Affinity,
    Container,
    LabelSelector,
    Metadata,
    NodeSelectorRequirement,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
)
from muster.dialects.settings import DEFAULTS


def test_a_long_text_is_no_quantity_and_not_remembered() -> None:
    before = quantities._parse.cache_info().currsize
    assert quantities.parse("9" * 1_000_000) is None
    assert quantities._parse.cache_info().currsize == before


def spec(containers: int) -> PodSpec:
    asked = ResourceRequirements(limits={"nvidia.com/gpu": "1"})
    return PodSpec(
        containers=[Container(f"container-{n}", asked) for n in range(containers)], affinity=Affinity()
    )


@pytest.mark.parametrize("containers", [1, 1_000])
def test_large_pods_are_summed_up_alike_and_not_remembered(containers: int) -> None:
    requests._asked.cache_clear()
    assert requests.read("pod/n/p", spec(containers), DEFAULTS).gpus == containers
    assert requests._asked.cache_info().currsize == (containers == 1)


def test_of_a_pod_that_is_remembered_only_what_is_summed_up_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    summed = requests._asked

    def noted(parts: Any, settings: Any) -> Any:
        kept.append(parts)
        return summed(parts, settings)

    monkeypatch.setattr(requests, "_asked", noted)
    requests.read("pod/n/p", spec(1), DEFAULTS)
    assert kept[0].spec.affinity is None


def away_from(pod: int, values: int) -> PodSpec:
    """A pod that keeps away from pods with any of so many values."""
    expression = NodeSelectorRequirement("app", "In", [f"{pod}-{n}" for n in range(values)])
    term = PodAffinityTerm("zone", LabelSelector(match_expressions=[expression]))
    return PodSpec(affinity=Affinity(pod_anti_affinity=PodAffinity(required=[term])))


def test_of_large_rules_and_labels_few_are_remembered() -> None:
    """They may be a megabyte each."""
    for cache in (peers._shared_rules, peers._shared):
        cache.cache_clear()
    for pod in range(100):
        for size in (1, 256):
            peers.read("pod/n/p", Metadata(name="p", namespace="n"), away_from(pod, size))
            peers.labels_of({f"{pod}-{n}": "v" for n in range(size)})
    assert peers._shared_rules.cache_info().currsize == peers._shared.cache_info().currsize == 100
    large = (peers._shared_large_rules, peers._shared_large)
    assert all((cache.cache_info().maxsize or 0) <= 64 for cache in large)


def test_pods_of_one_template_share_their_large_rules() -> None:
    first, second = (
        peers.read("pod/n/p", Metadata(name="p", namespace="n"), away_from(0, 256))[0] for _ in range(2)
    )
    assert first is second
