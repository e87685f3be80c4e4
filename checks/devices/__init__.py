"""Compare what the node agent says of real GPUs with what NVIDIA's own tools say: `make device-check`.

It is for a machine with a GPU and without a network, and takes at most five minutes.
"""
