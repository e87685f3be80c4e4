"""Transitions of gangs between phases, as functions on one state."""
