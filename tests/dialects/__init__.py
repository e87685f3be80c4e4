"""Tests of the dialects: tables of what users write, and objects that nobody should write."""
