"""`make fuzz`: what a real API server accepts of hostile users, and whether the service outlives it.

`texts` are JSON texts of any depth and size, `attacks` puts them into objects of each kind that is watched,
and `runner` sends these while ordinary gangs are to be placed. The first two are pure. As in all of e2e,
nothing of `muster` may be imported.
"""
