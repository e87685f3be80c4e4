"""Draw nodes and their GPUs for a terminal, from plain facts of the domain.

Nothing here asks a cluster: the caller passes a topology and which pod holds which GPU. Pictures are `rich`
texts of at most 100 columns. They say the same without colour: a heavy frame marks what is new.
"""

from muster.adapters.drawing.node import draw_node
from muster.adapters.drawing.picture import Mark, NodePicture
from muster.adapters.drawing.strip import draw_strips

__all__ = ["Mark", "NodePicture", "draw_node", "draw_strips"]
