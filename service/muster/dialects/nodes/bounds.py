"""Limits on the reading of one node, because a node's account may write any text into its own objects.

Values beyond a limit are left out, and a sentence in `Node.problems` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from muster.dialects.keys import GPU_COUNT, GPU_UUIDS
from muster.dialects.objects import ConfigMapObject, NodeObject, NodeTaint
from muster.dialects.quantities import Quantity
from muster.dialects.settings import DialectSettings
from muster.domain.allocation import MAX_GPUS

MAX_CONFIG_MAPS = 8
MAX_LABELS = 1024
"""Node feature discovery sets some 200."""
MAX_TAINTS = 64
MAX_RESOURCES = 256
MAX_TEXT = 32 * 1024
"""Characters of a text about GPUs in an annotation or a ConfigMap. A matrix of 64 GPUs has some 20,000."""
MAX_PROBLEMS = 16
MAX_CHARACTERS = 400
"""Largest number of characters of one problem."""
TOO_MANY_TAINTS = "muster.dev/too-many-taints"
"""A taint in place of the taints that are not read. A pod that tolerates all taints tolerates this taint too.
"""

_ENTRY = 16
"""The characters that a label, taint or resource counts in `reading_size`."""


def cut_to_limits(obj: NodeObject, settings: DialectSettings) -> tuple[NodeObject, list[str]]:
    """Return the node with only the parts that are read, and sentences about the parts left out."""
    meta, spec, status, problems = obj.metadata, obj.spec, obj.status, list[str]()
    if (count := len(meta.labels or ())) > MAX_LABELS:
        meta = msgspec.structs.replace(meta, labels=dict(sorted((meta.labels or {}).items())[:MAX_LABELS]))
        problems.append(f"it has {count} labels: the first {MAX_LABELS} by name are read")
    if (count := len(spec.taints or ())) > MAX_TAINTS:
        taints = [*(spec.taints or ())[:MAX_TAINTS], NodeTaint(TOO_MANY_TAINTS, "", "NoSchedule")]
        spec = msgspec.structs.replace(spec, taints=taints)
        problems.append(f"it has {count} taints; at most {MAX_TAINTS} are read: only who tolerates all fits")
    if (count := len(status.allocatable or ())) > MAX_RESOURCES:
        names = sorted(status.allocatable or (), key=lambda name: (settings.is_other(name), name))
        amounts = {name: (status.allocatable or {})[name] for name in names[:MAX_RESOURCES]}
        status = msgspec.structs.replace(status, allocatable=amounts)
        problems.append(f"allocatable has {count} resources: the first {MAX_RESOURCES} by name are read")
    return msgspec.structs.replace(obj, metadata=meta, spec=spec, status=status), problems


def first_problems(problems: Iterable[str]) -> tuple[str, ...]:
    """Return the first of these problems, each once, and a sentence with the number of the others."""
    different = list(dict.fromkeys(problems))
    first = [problem[:MAX_CHARACTERS] for problem in different[:MAX_PROBLEMS]]
    unshown_count = len(different) - len(first)
    return (*first, *([f"and {unshown_count} more problems"] if unshown_count else ()))


def reading_size(obj: NodeObject, maps: Iterable[ConfigMapObject], settings: DialectSettings) -> int:
    """Return how long a node takes to read, as a number of characters."""
    annotations, status = obj.metadata.annotations or {}, obj.status
    texts = chain(annotations.values(), *((part.data or {}).values() for part in maps))
    counts = (status.allocatable, obj.metadata.labels, obj.spec.taints, status.conditions)
    gpus = max(
        annotations.get(GPU_UUIDS, "").count(",") + 1,
        _number(obj.metadata.labels or {}, GPU_COUNT),
        *(_number(status.allocatable or {}, name) for name in settings.gpu_resources),
    )
    return (
        sum(map(len, texts)) + _ENTRY * sum(len(part or ()) for part in counts) + 4 * min(gpus, MAX_GPUS) ** 2
    )


def _number(amounts: Mapping[str, Quantity], name: str) -> int:
    """Return the number of GPUs of this resource; MAX_GPUS if it is no plain number."""
    text = str(amounts.get(name, 0))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else MAX_GPUS
