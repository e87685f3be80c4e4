"""Jobs of every kind, submitted as their users submit them, on a cluster with the real CRDs of each kind.

JobSet and LeaderWorkerSet have their real controllers (`controllers`), Job and StatefulSet have
kube-controller-manager's. The pods of the other kinds are made as their operators make them (`operators`).
"""
