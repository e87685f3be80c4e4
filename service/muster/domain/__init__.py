"""The words of the project as frozen dataclasses: nodes, topology, requests, decisions, causes.

Only the standard library may be imported here, and everything else may import this.
"""
