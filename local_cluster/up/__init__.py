"""`make up`: a cluster with Muster on it to try things on, which stays until Ctrl-C."""
