"""`make example NAME=…`: one manifest of examples/ on a local cluster, and what came of it.

    python -m local_cluster.examples                 all of them, with what each shows
    python -m local_cluster.examples one-rack        apply it, show the outcome, stop everything

`catalogue` reads what a file's first lines say of it; everything that is shown is read from the API server.
"""
