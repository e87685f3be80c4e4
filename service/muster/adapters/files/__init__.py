"""Run the engine on files: `muster place` and `muster capture`.

- `sources` reads bytes into documents, and `shapes` checks them.
- `templates` creates the pods that controllers would create.
- `cluster` does what the API server would do: defaults, and unique names.
- `decide` places gang after gang, and `report`, `pictures` and `svg` show the result.
- `capture` writes a live cluster as a file.

Only `sources` and `capture` do I/O. The service uses nothing of this folder.
"""
