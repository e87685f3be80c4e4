"""Read the cluster for the planner: a snapshot as columns, the domain of each node, and which nodes admit a
role.
"""
