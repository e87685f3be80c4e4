"""The cluster as the planner reads it: columns of facts, where each GPU lies, which nodes admit whom."""
