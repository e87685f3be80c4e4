"""`make demo`: Muster on a real control plane, drawn for a person and checked for a machine.

    python -m local_cluster.demo            pictures and claims
    python -m local_cluster.demo --json     the facts behind them

Everything it says is read from the API server. The one part of `muster` that is used besides the
drawing is what first-fit would have done; the links are judged by `matrix`, which shares no code with
the planner.
"""
