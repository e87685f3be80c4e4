"""The stock scheduler as an oracle: what it places, Muster places as well.

`draw.py` draws clusters and pods with random constraints (pure), `trial.py` asks both schedulers about each
pod in the same state of a real cluster, `__main__.py` is `make oracle`.
"""
