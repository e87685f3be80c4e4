"""Draw the dashboards with Grafana's own panels: `make dashboards`."""
