"""The GPUs of one node: rings over links, the best sets, what taking them spoils, rules inside a node."""
