"""Figures of Muster and of its peers' methods, in the same run and on the same clusters.

We write the peers' methods ourselves, from their published descriptions. `python -m benchmarks.run --help`
lists the options. docs/measurements-appendix.md says how to read the figures.
"""
