"""Each module here has all that the tests know of one constraint that gives numbers by scope.

The tests of dialects, causes, sentences, plans and random worlds walk through TESTED. So one file here tests
a new constraint everywhere.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from muster.domain.constraints import PER_SCOPE
from tests.placement.constraints.tested import Tested

_DEFINED = [
    value
    for module in iter_modules(__path__)
    for value in vars(import_module(f"{__name__}.{module.name}")).values()
    if isinstance(value, Tested)
]
TESTED = tuple(sorted(_DEFINED, key=lambda kind_tested: PER_SCOPE.index(kind_tested.kind)))
OF_KIND = {kind_tested.kind: kind_tested for kind_tested in TESTED}
