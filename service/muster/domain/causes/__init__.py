"""Why a gang waits, does not fit or is ill-formed: each cause with its sentence and with what helps.

A module has the causes of one subject, and ends with their union. `muster.domain.reasons` joins the unions.
"""
