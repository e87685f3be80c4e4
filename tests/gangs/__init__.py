"""Tests of the gangs' life: tables of transitions, and a model that interleaves everything."""
