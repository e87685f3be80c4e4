"""Find the pods that would have to end, at the least loss, so that a gang fits.

`clear` asks a model, in sums of resources, for the cheapest victims. Then the search of `place` decides
whether the gang fits once these are gone. If not, the model learns that some other pod must go too.
"""

from muster.placement.clearing.clear import clear

__all__ = ["clear"]
