"""Nodes: `nodes` is the way in. The other modules read the links of GPUs, labels and ConfigMaps."""
