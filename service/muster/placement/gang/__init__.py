"""Describe one gang on this cluster: blocks of equal members, constraints, running members, and packings of
nodes.
"""
