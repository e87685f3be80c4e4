"""Search the best plan level by level: each level is decided by the first exact method that applies."""
