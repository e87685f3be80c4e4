"""`make chaos`: Muster under load while its parts die, and an auditor that knows the API server alone.

`submissions` says what is submitted, `crowd` does it; `faults` says what is broken, `runner` when, and `aim`
where in its life a gang is then. `hostile` attacks meanwhile. `auditor` judges, with `fits`, `losses`,
`meter` and `waits` as its parts; these five and `submissions` are pure, `watching` feeds them. As in all of
e2e, nothing of `muster` may be imported.
"""
