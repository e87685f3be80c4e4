"""The best plan: on one node, in one rack, or over many, level by level."""
