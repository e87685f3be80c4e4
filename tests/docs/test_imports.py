"""The pictures of imports in docs/architecture.md are those of the code, and have no circle."""

from __future__ import annotations

import pytest

from checks import imports


def test_the_page_has_the_pictures_of_the_code() -> None:
    """`python -m checks.imports` writes them."""
    page = imports.PAGE.read_text()
    assert {graph[1] for graph in imports.GRAPH.finditer(page)} == set(imports.PICTURES)
    assert imports.with_graphs(page) == page


def test_arrows_that_follow_from_others_are_left_out() -> None:
    chain = {("a", "b"), ("b", "c"), ("c", "d")}
    assert imports.reduce_edges(frozenset(chain | {("a", "c"), ("a", "d")})) == chain


def test_a_circle_of_folders_is_a_defect() -> None:
    with pytest.raises(ValueError, match="import one another"):
        imports.reduce_edges(frozenset({("a", "b"), ("b", "c"), ("c", "a")}))
