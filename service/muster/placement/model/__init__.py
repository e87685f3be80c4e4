"""Model the problem: arrays of classes and patterns, the bound, and CP-SAT on the core that the bound leaves.

The arrays of a problem have these axes. An example with two racks and five nodes:

    part of scope rack      rack 0                    rack 1
    cell                    cell 0                    cell 1
    row (node)              row 0   row 1   row 2     row 3   row 4
    class                   --class 0---    class 1   --class 2---
    kind                       kind 0       kind 1       kind 0

    kind 0:  pattern 0 = 4 members on GPUs 0-3,  pattern 1 = 8 members on GPUs 0-7
    kind 1:  pattern 0 = 2 members on GPUs 0-1

- A cell is the nodes that lie in the same part of each counted scope.
- A kind is a list of patterns. A pattern is the members by role that one node may take, on one GPU set.
- A class is the nodes of one kind in one cell. The model does not tell the nodes of a class apart.

A solution says how many nodes of each class take each pattern (`Use`).

No other folder imports OR-tools.
"""
