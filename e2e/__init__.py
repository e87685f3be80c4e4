"""The real system under test: Muster's processes on a real API server, driven only as a user would.

`client` talks to any API server, `record` watches it, `facts` and `audit` judge what was seen without
any of Muster's own code, `scene` is what one test has for itself. Nothing of `muster` may be imported here.
"""
