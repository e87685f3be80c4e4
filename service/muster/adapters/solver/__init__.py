"""The planner in a process of its own, which can be ended and whose memory is bounded."""
