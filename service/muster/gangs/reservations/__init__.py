"""Capacity that is held for gangs without a plan: retained places and the backfill reservation."""
