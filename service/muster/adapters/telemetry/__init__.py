"""Muster's own telemetry: logs, traces, metrics.

Each module of this folder stands alone; none of them decides anything.
"""
