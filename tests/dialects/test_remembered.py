"""What is remembered of pods that are gone is small, however large they were."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from muster.dialects import quantities
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
    Volume,
    VolumeClaim,
)
from muster.dialects.pods import peers, requests
from muster.dialects.settings import DEFAULTS
from muster.domain.peers import NO_PEER_RULES


def test_a_long_text_is_no_quantity_and_not_remembered() -> None:
    before = quantities._billionths.cache_info().currsize
    assert quantities.parse("9" * 1_000_000) is None
    assert quantities._billionths.cache_info().currsize == before


def spec(containers: int) -> PodSpec:
    resources = ResourceRequirements(limits={"nvidia.com/gpu": "1"})
    return PodSpec(
        containers=[Container(f"container-{n}", resources) for n in range(containers)], affinity=Affinity()
    )


@pytest.mark.parametrize("containers", [1, 1_000])
def test_pods_of_any_size_are_summed_up_once_and_little_is_remembered(containers: int) -> None:
    requests._cached_sum.cache_clear()
    for _ in range(2):
        amounts = requests.read("pod/n/p", spec(containers), DEFAULTS)
        assert amounts.gpus == containers
        assert len(amounts.container_gpus) == (containers == 1)
    assert requests._cached_sum.cache_info().misses == 1


def test_of_a_pod_that_is_remembered_only_the_sum_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: list[Any] = []
    summed = requests._cached_sum

    def noted(parts: Any, settings: Any) -> Any:
        remembered.append(parts)
        return summed(parts, settings)

    monkeypatch.setattr(requests, "_cached_sum", noted)
    requests.read("pod/n/p", spec(1), DEFAULTS)
    assert remembered[0].pod == []


def away_from(pod: int, values: int) -> PodSpec:
    """Return a pod with anti-affinity to pods with any of this number of values."""
    expression = NodeSelectorRequirement("app", "In", [f"{pod}-{n}" for n in range(values)])
    term = PodAffinityTerm("zone", LabelSelector(match_expressions=[expression]))
    return PodSpec(affinity=Affinity(pod_anti_affinity=PodAffinity(required=[term])))


def test_rules_are_forgotten_with_their_pods_and_of_large_labels_few_are_remembered() -> None:
    """They may be a megabyte each."""
    peers._intern_labels.cache_clear()
    gc.collect()
    before = len(peers._live_peer_rules)
    for pod in range(100):
        for size in (1, 256):
            peers.rules_of("pod/n/p", Metadata(name="p", namespace="n"), away_from(pod, size))
            peers.labels_of({f"{pod}-{n}": "v" for n in range(size)})
    gc.collect()
    assert len(peers._live_peer_rules) == before
    assert peers._intern_labels.cache_info().currsize == 100
    assert (peers._intern_many_labels.cache_info().maxsize or 0) <= 64


def test_pods_of_many_large_templates_share_the_rules_of_each() -> None:
    """However their pods come: equal rules of live pods are one object."""
    meta = Metadata(name="p", namespace="n")
    all_rules = [peers.rules_of("pod/n/p", meta, away_from(pod % 40, 200))[0] for pod in range(400)]
    assert len({id(rules) for rules in all_rules}) == 40


def test_rules_that_are_too_large_together_are_left_out() -> None:
    term = away_from(0, 200).affinity.pod_anti_affinity.required[0]  # type: ignore[union-attr, index]
    many = PodSpec(affinity=Affinity(pod_anti_affinity=PodAffinity(required=[term] * 6)))
    assert peers.rules_of("pod/n/p", Metadata(name="p", namespace="n"), many) == (NO_PEER_RULES, ())


@pytest.mark.parametrize("claims", [peers.MAX_CLAIMS, peers.MAX_CLAIMS + 1, 10_000])
def test_a_pod_with_too_many_claims_is_refused_and_keeps_no_more(claims: int) -> None:
    volumes = [Volume(f"v{n}", VolumeClaim(f"c{n:05}")) for n in range(claims)]
    rules, causes = peers.rules_of("pod/n/p", Metadata(name="p", namespace="n"), PodSpec(volumes=volumes))
    assert len(rules.volume_claims) == peers.MAX_CLAIMS
    sentences = [str(cause) for cause in causes]
    field = "number of PersistentVolumeClaims in volumes"
    expected = [f'pod/n/p: {field} is "more than 256", expected at most {peers.MAX_CLAIMS}']
    assert sentences == (expected if claims > peers.MAX_CLAIMS else [])


def test_pods_of_one_template_share_their_large_rules() -> None:
    first, second = (
        peers.rules_of("pod/n/p", Metadata(name="p", namespace="n"), away_from(0, 256))[0] for _ in range(2)
    )
    assert first is second
