"""Tests of the dialects: tables of what users write, and objects that are wrong on purpose."""
