"""One gang in one rack: with Muster, and with the gang scheduling of kube-scheduler itself (1.37, beta)."""
