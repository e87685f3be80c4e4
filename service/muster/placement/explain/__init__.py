"""Explain why nothing fits, and find changes that would help."""
