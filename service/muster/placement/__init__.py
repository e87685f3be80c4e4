"""Decide where the members of one gang go: (Snapshot, Request, Limits) → Decision, without a clock or I/O.

`place` makes the decision. `verify/` checks each plan and shares no code with the planner except `domain/`.
`moves` looks for better places of single running members. Each folder may import the folders after it in this
list:

- `clearing/`: the cheapest victims, if a gang should fit where others run
- `explain/`: why no plan exists, and which changes would help
- `search/`: the best plan
- `gang/`: the gang on this cluster: its constraints, and the packings of each node
- `model/`: the problem as arrays, bounds, and CP-SAT
- `gpus/`: the best GPUs inside a node
- `cluster/`: the snapshot as columns, and which nodes admit which members
"""
