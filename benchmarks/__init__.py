"""Figures, each beside the peers' methods that we write ourselves from their published descriptions, in the
same run and on the same clusters. `python -m benchmarks.run --help`; docs/benchmarks.md says how to read it.
"""
