"""Tests of what the container images hold."""
