"""Describe one gang on this cluster: blocks of equal members, constraints, existing members, and packings of
nodes.
"""
