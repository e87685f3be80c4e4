"""Tests of the cheapest victims."""
