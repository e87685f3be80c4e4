"""Checks of the sources that no other tool makes."""
