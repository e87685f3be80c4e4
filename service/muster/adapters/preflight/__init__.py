"""Check before and after an installation whether a cluster has what Muster needs: `muster preflight`.

`read` asks the API server, `checks` judges what it said and does no I/O, `report` prints.
"""
