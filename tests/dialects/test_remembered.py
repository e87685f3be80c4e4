"""What is remembered of pods that are gone is small, however large they were."""

from __future__ import annotations

from typing import Any

import pytest

from muster.dialects import quantities, requests
from muster.dialects.objects import Affinity, Container, PodSpec, ResourceRequirements
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
