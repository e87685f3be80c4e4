"""Describe one gang on this cluster: blocks of like members, constraints, existing members, and what nodes
take.
"""
