"""The planner, a pure function: (Snapshot, Request, Limits) → Decision. No clock, no I/O, no globals.

`place` is the whole, `verify` its judge, which shares no code with it but domain/, `moves` of single members.
Of the folders each may use those below it: `explain/` why nothing fits, and what would help; `search/` the
best plan; `gang/` what binds members; `model/` bounds and CP-SAT; `gpus/` the best GPUs inside a node;
`cluster/` the snapshot as columns, and which nodes admit whom.
"""
