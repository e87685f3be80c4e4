"""`make chaos`: Muster under load while its parts die, and an auditor that knows the API server alone.

`submissions` says what is submitted, `crowd` does it; `faults` says what is broken, `runner` when, and `aim`
where in its life a gang is then. `auditor` judges, with `fits`, `losses` and `meter` as its parts; these four
and `submissions` are pure, `watching` feeds them. As in all of e2e, nothing of `muster` may be imported.
"""
