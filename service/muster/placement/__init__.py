"""The planner, a pure function: (Snapshot, Request, Limits) → Decision. No clock, no I/O, no globals.

`candidates` which nodes admit a role, `gpusets` the best GPUs inside a node,
`model/` the CP-SAT model, `place` the whole, `verify` its judge, which shares no code with it but domain/.
"""
