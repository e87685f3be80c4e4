"""Run the engine on files: `muster place` and `muster capture`.

- `reading` makes the facts of a cluster from documents, as the API server and controllers would. It also
  writes a live cluster as such a file.
- `decide` places gang after gang.
- `showing` prints the result: JSON, a terminal, SVG.

Only `run`, `reading.sources` and `reading.capture` do I/O. The service uses nothing of this folder.
"""
