"""What containers on real nodes print of themselves: the GPUs that their device plugin gave them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from local_cluster.api import Api
from local_cluster.patience import Guard

SHOW_GPUS = Path(__file__).with_name("show-gpus.yaml")
PRINTED = re.compile(r"^NVIDIA_VISIBLE_DEVICES=(\S+)$", re.MULTILINE)
POLL_EVERY_S = 0.1


class NotPrinted(RuntimeError):
    """A container did not print its GPUs in time. The text has the API server's answer."""


def printed_gpus(api: Api, pods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Pod of the namespace default → the GPUs in the log of its container, once it has printed them.

    Raises:
        NotPrinted: one did not print them in time.
    """
    guard = Guard()
    return {pod: _printed(api, pod, guard) for pod in pods}


def _printed(api: Api, pod: str, guard: Guard) -> tuple[str, ...]:
    while True:
        answer = api.send("GET", f"/api/v1/namespaces/default/pods/{pod}/log")
        text = answer.body.decode(errors="replace")
        if answer.ok and (match := PRINTED.search(text)):
            return tuple(match[1].split(","))
        if guard.over:
            raise NotPrinted(f"pod {pod} did not print its GPUs: {answer.status} {text[:300]}")
        time.sleep(POLL_EVERY_S)
