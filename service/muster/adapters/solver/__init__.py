"""The planner in a process of its own: it can be ended, and its memory is bounded."""
