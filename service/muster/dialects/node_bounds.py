"""How much of one node is read: a node's account may write what it likes into its own objects."""

from __future__ import annotations

MAX_DEVICES = 1024
"""Devices of ResourceSlices. The driver with most has some 40 for each GPU: the GPU and its partitions."""
MAX_POOLS = 64
"""Pools of ResourceSlices with devices of the node. Drivers publish one."""
