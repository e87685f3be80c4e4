"""Read files with the output of `nvidia-smi topo -m`, `rocm-smi` or `amd-smi`: the links of nodes.

A file replaces the annotation GPU_TOPOLOGY of the nodes that it names: by a line `# nodes: a, b, dgx-*`, else
by its own name (`gpu-1.txt` is node gpu-1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from muster.adapters.files.problems import BadInput, Malformed, shown
from muster.dialects.nodes import matrices
from muster.dialects.objects import NodeObject

_NODES = re.compile(r"^#\s*nodes?\s*:(.*)$", re.IGNORECASE | re.MULTILINE)
_OBJECT = "apiVersion"
"""Every object of Kubernetes contains this word. An object that carries a matrix is not a matrix."""


@dataclass(frozen=True, slots=True)
class Printed:
    """One file: the names or patterns of its nodes, and what the tool printed on them."""

    source: str
    nodes: tuple[str, ...]
    text: str


def parse_printed(source: str, text: str) -> Printed | None:
    """Return the file's matrix and the nodes that it names; None if the text is something else."""
    if _OBJECT in text or not (source.endswith(".txt") or matrices.is_table(text)):
        return None
    line = _NODES.search(text)
    names = (name.strip() for name in line[1].split(",")) if line else ()
    return Printed(source, tuple(name for name in names if name), text)


def annotate(
    nodes: Sequence[NodeObject], files: Iterable[Printed], key: str
) -> tuple[list[NodeObject], list[str]]:
    """Return the nodes with each file's text as their annotation `key`, and notes about what that replaces.

    Raises:
        BadInput: A file has no matrix, or names a node that is missing, or one that another file names.
    """
    texts: dict[str, Printed] = {}
    problems: list[Malformed] = []
    names = [node.metadata.name for node in nodes]
    for file in files:
        try:
            matrices.read(file.text)
            for name in _named(file, names):
                if (first := texts.setdefault(name, file)) is not file:
                    problem = f"node {name} has its links from {first.source} already"
                    problems.append(Malformed(file.source, "", problem))
        except matrices.Unreadable as error:
            problems.append(Malformed(file.source, "", f"no links of GPUs in it: {error}"))
        except Malformed as problem:
            problems.append(problem)
    if problems:
        raise BadInput(problems)
    notes = [
        f"Node {node.metadata.name}: its links are those of {texts[node.metadata.name].source}, not its {key}"
        for node in nodes
        if node.metadata.name in texts and key in (node.metadata.annotations or {})
    ]
    return [_with(node, key, texts.get(node.metadata.name)) for node in nodes], notes


def _named(file: Printed, nodes: Sequence[str]) -> list[str]:
    whole = Path(file.source).name
    patterns = file.nodes or ((whole,) if whole in nodes else (whole.removesuffix(".txt"),))
    names: list[str] = []
    for pattern in patterns:
        matches = [name for name in nodes if fnmatchcase(name, pattern)]
        if not matches:
            how = "name the file like its node, or its nodes in a line like `# nodes: gpu-1, dgx-*`"
            raise Malformed(file.source, "", f"no node of the input is named {shown(pattern)}; {how}")
        names += matches
    return list(dict.fromkeys(names))


def _with(node: NodeObject, key: str, file: Printed | None) -> NodeObject:
    if file is None:
        return node
    annotations = (node.metadata.annotations or {}) | {key: file.text}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations)
    )
