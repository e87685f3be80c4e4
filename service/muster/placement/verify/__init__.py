"""The judge of every plan: counts it again with the simplest means. It knows no solver and no planner.

Imports nothing of muster but muster.domain (import-linter holds it), so that an error in the planner's view
of the cluster is not repeated here. One module judges one theme, in sentences; `judge` asks them all.
"""

from muster.placement.verify.judge import verify

__all__ = ["verify"]
