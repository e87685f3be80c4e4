"""Turn documents into the facts of a cluster, and a live cluster into documents.

- `sources` reads bytes into documents, and `shapes` checks them.
- `templates` creates the pods that controllers would create, and `admission` completes new pods.
- `cluster` joins all of it, and `notes` says what has no effect.
- `capture` writes a live cluster as a file.
"""
