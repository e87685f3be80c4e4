"""Tests of `muster preflight`."""
