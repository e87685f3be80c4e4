"""The record of one gang, its phases and its timers."""
