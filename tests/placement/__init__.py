"""The placement engine: drawn topologies in tables, and properties against a naive model."""
