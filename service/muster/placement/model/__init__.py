"""Model the problem: arrays of classes and patterns, the bound, and CP-SAT on the core that the bound leaves.

No other folder imports OR-tools.
"""
