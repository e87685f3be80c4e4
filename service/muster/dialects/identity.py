"""What of an object's metadata tells which object it is: the rest may be large."""

from __future__ import annotations

import msgspec


class Identity(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The first fields of `objects.Metadata`."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
