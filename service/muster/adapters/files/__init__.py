"""The engine on files: `muster place` and `muster capture`.

`sources` reads bytes into documents, and `shapes` checks them. `templates` does what controllers would do,
and `cluster` what the API server would (defaults, names that are unique). `decide` places gang after gang;
`report`, `table` and `svg` show it. `capture` writes a live cluster as a file. Only `sources` and `capture`
do I/O; nothing in here runs in a service.
"""
