"""The page: a map of racks, nodes and GPUs with their owners, and the gangs that wait, for a browser.

`layout`, `rows` and `detail` are pure. `board` looks at the cluster in small parts while a browser is
connected. `access` asks the API server about tokens, and `server` answers HTTP.
"""
