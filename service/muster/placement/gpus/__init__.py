"""Choose GPUs inside a node: rings over links, the best sets, the damage of taking them, and rules inside a
node.
"""
