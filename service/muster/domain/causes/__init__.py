"""Causes why a gang waits, does not fit or is ill-formed, each with its sentence and its advice.

Each module has the causes of one subject, and ends with their union. `muster.domain.reasons` joins the
unions.
"""
