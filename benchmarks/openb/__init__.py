"""Replay of the openb trace: pods, one after another, until the cluster is full. How much is left over?

The trace, its definition and the published results are those of "Beware of Fragmentation" (ATC'23);
docs/measurements-appendix.md says what is measured. Only `planner` knows the planner, and only `__main__`
prints.
"""
