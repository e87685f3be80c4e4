"""The CP-SAT model: classes of nodes and the patterns they may take. build.py shows the whole problem.

`problem` is its data, `rule` what binds members, `build` the model, `objective` the levels.
`solve` runs them in order. Nothing outside this folder imports ortools; nothing inside knows pods, names or
clocks.
"""
