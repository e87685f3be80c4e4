"""The page for a browser: a map of racks, nodes and GPUs with their owners, and the waiting gangs.

`layout`, `rows` and `detail` are pure. `board` reads the cluster in small parts while a browser is connected.
`access` asks the API server about tokens, and `server` answers HTTP.
"""
