"""`muster place` and `muster capture`: manifests in, decisions out."""
