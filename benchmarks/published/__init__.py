"""Place the manifests that other projects publish, with only the scheduler's name changed (README.md)."""
