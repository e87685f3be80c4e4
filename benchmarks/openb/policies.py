"""Which of the ways to place a pod is best: a cost for each, the least wins, ties go to the first node."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.openb.cluster import Options, States
from benchmarks.openb.supply import Mix
from benchmarks.openb.trace import GPU, TYPICAL, Request, mix

Costs = NDArray[np.float64]

LARGEST_NODE = {"cpu": 128_000, "gpu_milli": 8_000}
"""What best fit divides by (MaxSpecCpu, MaxSpecGpu of the simulator)."""

DIGITS = 6
"""Decimals kept, so that equal costs are equal whatever the order of a sum."""


class Policy(Protocol):
    """A rule for single pods."""

    lasts: bool
    """Whether a cost stays true on a node that did not change."""

    def costs(self, options: Options) -> Costs:
        """Of each option; less is better."""


class Name(StrEnum):
    """The policies."""

    RANDOM = "random"
    BEST_FIT = "best-fit"
    FGD = "fgd"
    FGD_ALL = "fgd-all"
    MUSTER = "muster"


PUBLISHED_AS = {Name.RANDOM: "01-Random", Name.BEST_FIT: "05-BestFit", Name.FGD: "06-FGD"}


def policy(name: Name, workload: Sequence[Request], models: tuple[str, ...], seed: int) -> Policy:
    """The policy, told the mix of the workload, as far as it wants to know, and the cluster's GPU models.

    Raises:
        ValueError: it is the planner's, which is no cost.
    """
    match name:
        case Name.RANDOM:
            return Random(seed)
        case Name.BEST_FIT:
            return BestFit()
        case Name.FGD:
            return Fgd(Mix.of(mix(workload, TYPICAL), models))
        case Name.FGD_ALL:
            return Fgd(Mix.of(mix(workload), models))
        case Name.MUSTER:
            raise ValueError("the planner places those pods: planner.replay")


class Random:
    """Any way, all equally likely to be tried first."""

    lasts = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def costs(self, options: Options) -> Costs:
        """Random, between 0 and 1."""
        return self._generator.random(len(options.row))


class BestFit:
    """Least left over, cpu and GPUs in shares of the largest node, in whole percent (05-BestFit)."""

    lasts = True

    def costs(self, options: Options) -> Costs:
        """Percent left over, -100 … 0."""
        after = options.after
        share_left = after.cpu / LARGEST_NODE["cpu"] + after.gpu_milli / LARGEST_NODE["gpu_milli"]
        return -np.floor(100 * (1 - share_left / 2))


class Fgd:
    """Fragmentation gradient descent, from its paper (ATC'23), with the rounding of the published runs.

    F(node) = Σ over typical requests p, weighted by their share, of the free GPUs that p can't use: all of
    them where p does not fit, else those with less free than p asks of one. A request without GPUs uses none.
    The score, 100 · sigmoid(F before - F after in GPUs), is cut to a whole number.
    """

    lasts = True

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._share = mix.weights(mix.share)

    def costs(self, options: Options) -> Costs:
        """-100 … 0."""
        before, after = (self._fragmentation(states) for states in (options.before, options.after))
        grown = np.round(after - before[options.row], DIGITS)
        return -np.floor(100 / (1 + np.exp(grown / GPU)))

    def _fragmentation(self, states: States) -> Costs:
        return states.gpu_milli - worth(self._mix.roomy(states), self._share, states)


def worth(gpus: Costs, weights: Costs, states: States) -> Costs:
    """Σ over sizes of what they could use, by the weights for the state's model."""
    value: Costs = np.einsum("ij,ij->i", gpus, weights[states.model])
    return value
