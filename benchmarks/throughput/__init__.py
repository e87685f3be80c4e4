"""Pods bound per second on a real control plane, with Muster and with a stock profile of the same scheduler.

`sides` are the two ways to run the scheduler, `site` the cluster and what is done on it, `binds` when each
pod was seen bound, `trials` one measurement, `questions` what is asked of pairs of them, `paired` what those
say, `flood` what too many pods do to the service, `report` tables and JSON lines; `pods`, `prometheus` and
`paired` are pure. `python -m benchmarks.throughput --help` runs it.
"""
