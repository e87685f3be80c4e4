"""Methods of other schedulers, written anew from their published descriptions; each module names its source.

They share our reading of what is free and none of our planner. Their milliseconds are those of this Python,
not of the original: compare the plans. Each first reproduces figures or quirks of its original, in
tests/benchmarks.
"""
