"""Gangs that come and go: how many are turned away, and how much work is placed.

docs/measurements-appendix.md says what is measured.
"""
