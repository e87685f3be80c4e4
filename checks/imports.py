"""Draw which folders import which, as mermaid graphs for docs/architecture.md.

    python -m checks.imports        write them into the page

A test fails if the page has other graphs than the code. An arrow that follows from others is left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PICTURES: Mapping[str, tuple[str, ...]] = {
    "muster": ("cli", "app"),
    "muster.dialects": (),
    "muster.gangs": ("coordinator",),
    "muster.placement": ("place", "moves"),
    "muster.adapters": ("control_loop", "planner", "scrape"),
}
"""Package → its modules that are drawn next to its folders: the ways in."""
GRAPH = re.compile(r"(?s)<!-- imports of (\S+) -->\n.*?```\n(?=\n)")

Edges = frozenset[tuple[str, str]]
"""Pairs (importer, imported) of folders."""


def main() -> int:
    """Write the graphs into the page, and return the exit status."""
    PAGE.write_text(with_graphs(PAGE.read_text()))
    return 0


def with_graphs(page: str) -> str:
    """Return the page with the graphs of the code."""
    graph = grimp.build_graph("muster", cache_dir=None)
    return GRAPH.sub(lambda match: picture(graph, match[1]), page)


def picture(graph: grimp.ImportGraph, package: str) -> str:
    """Return the marker and the mermaid graph of a package's folders."""
    arrows = sorted(reduce_edges(edges(graph, package)))
    lines = (f"    {importer} --> {imported}" for importer, imported in arrows)
    return "\n".join((f"<!-- imports of {package} -->", "", "```mermaid", "graph TD", *lines, "```", ""))


def edges(graph: grimp.ImportGraph, package: str) -> Edges:
    """Return which folders of the package import which, without its modules that are not in PICTURES."""
    depth = package.count(".") + 1
    children = graph.find_children(package)
    drawn_here = {child for child in children if graph.find_children(child)}
    drawn_here |= {f"{package}.{name}" for name in PICTURES[package]}

    def pairs() -> Iterator[tuple[str, str]]:
        for importer in drawn_here:
            for module in (importer, *graph.find_descendants(importer)):
                for imported in graph.find_modules_directly_imported_by(module):
                    folder = ".".join(imported.split(".")[: depth + 1])
                    if folder in drawn_here and folder != importer:
                        yield importer.split(".")[-1], folder.split(".")[-1]

    return frozenset(pairs())


def reduce_edges(edges: Edges) -> Edges:
    """Return the edges that do not follow from others. The graph must have no cycle.

    Raises:
        ValueError: folders import one another in a circle.
    """
    below: dict[str, set[str]] = {}

    def reach(folder: str, path: tuple[str, ...]) -> set[str]:
        if folder in path:
            raise ValueError(f"folders import one another: {' → '.join((*path, folder))}")
        if folder not in below:
            direct = {imported for importer, imported in edges if importer == folder}
            below[folder] = direct.union(*(reach(imported, (*path, folder)) for imported in direct))
        return below[folder]

    for folder in {importer for importer, _ in edges}:
        reach(folder, ())
    return frozenset(
        (importer, imported)
        for importer, imported in edges
        if not any(imported in below.get(middle, ()) for start, middle in edges if start == importer)
    )


if __name__ == "__main__":
    sys.exit(main())
