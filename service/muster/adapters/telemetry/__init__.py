"""Muster's own telemetry: logs, traces, metrics.

The modules are independent of each other, and decide nothing.
"""
