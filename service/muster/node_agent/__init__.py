"""The decisions of `muster node-agent`: the devices that a node offers, and those that a container gets
(pure).

The plan has booked GPUs for each container. An answer to the kubelet names these GPUs, or refuses with a
reason, and never names other GPUs. ADR 0033 has the design; the agent's connections are not here.
"""
