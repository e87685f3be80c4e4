"""Inputs, calls and settings that the coordinator takes in, and the instructions that it returns."""
