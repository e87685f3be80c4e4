"""One gang in one rack: Muster beside the gang scheduling that kube-scheduler has of its own (1.37, beta)."""
