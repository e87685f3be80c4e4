"""What `muster node-agent` decides: which devices a node offers, and which ones a container gets (pure).

The plan has booked GPUs for each container. An answer to the kubelet names these or is a refusal that says
why: never other GPUs. ADR 0033 has the design; the agent's connections are not here.
"""
