"""Dashboards for Grafana, as typed Python. `python -m dashboards` writes them as JSON next to this file."""
