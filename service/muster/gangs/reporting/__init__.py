"""Verdicts, events and PodGroup statuses."""
