"""The requests that usually come: what damage is measured by, where a cluster says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TypicalRequest:
    """One kind of request of those that come, and the share of it.

    `share` is positive; only the ratios between the shares of a mix count. A pod of it asks for `cpu_milli`
    thousandths of a core and for `gpus` whole GPUs. If `units` is not zero, it asks for as many GiB of each
    GPU's memory instead, as `aliyun.com/gpu-mem` counts. `labels`: label keys of nodes with the values that
    it accepts, as its node selector or affinity has them; all must hold.
    """

    share: float
    gpus: int
    cpu_milli: int = 0
    units: int = 0
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
