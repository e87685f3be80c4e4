"""Check every plan again with the simplest means, without the solver and without code of the planner.

Nothing of muster but muster.domain is imported here, which import-linter enforces. So an error in the
planner's view of the cluster is not repeated. Each module checks one theme, and `judge` calls them all. Each
check returns a sentence for each error.
"""

from muster.placement.verify.judge import verify
from muster.placement.verify.victims import verify_clearing

__all__ = ["verify", "verify_clearing"]
