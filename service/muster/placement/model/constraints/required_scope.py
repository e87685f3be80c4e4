"""required_scope: all members lie in one part of the required scope, and of the preferred one being tried."""

from __future__ import annotations

from muster.placement.model.variables import Variables

NAME = "required_scope"


def add(variables: Variables) -> None:
    variables.model.add_exactly_one(variables.part.values()).with_name(NAME)
