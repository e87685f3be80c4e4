"""What Muster says about itself: logs, traces, metrics.

Each module of this folder stands alone; none of them decides anything.
"""
