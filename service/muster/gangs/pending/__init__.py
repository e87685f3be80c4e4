"""Gangs that wait: their order, the answers of in-tree plugins, and what a refused gang waits for."""
