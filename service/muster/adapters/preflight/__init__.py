"""Check before and after an installation whether a cluster has what Muster needs: `muster preflight`.

`read` asks the API server, `checks` judges the facts without I/O, and `report` prints the findings.
"""
