"""From what the watches of claims, volumes, classes and drivers see to the gangs' inputs about claims.

An input says whether a claim's volume attaches to one node alone, once for each change of that. A claim is
looked at again when its volume, class or driver changes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from muster.adapters.kube.watch import Gone, Seen
from muster.dialects.objects import CsiDriver, PersistentVolume, PersistentVolumeClaim, StorageClass
from muster.dialects.pods import volumes
from muster.dialects.pods.volumes import ClaimKey, Volumes
from muster.gangs.messages.inputs import Input, VolumeClaimSeen


class VolumeIntake:
    """`on_…` are the watches' sinks; `put` takes the inputs, in order."""

    def __init__(self, put: Callable[[Input], Awaitable[None]]) -> None:
        self._put = put
        self._volumes = Volumes()
        self._claims_of: dict[str, set[ClaimKey]] = {}
        """Volume → claims that name it."""
        self._told: set[ClaimKey] = set()
        """The claims that the gangs know to attach once."""

    async def on_claim(self, change: Seen[PersistentVolumeClaim] | Gone) -> None:
        """Take in a claim's change, and report whether its volume attaches to one node alone."""
        if isinstance(change, Gone):
            namespace, _, name = change.key.partition("/")
            key, claim = (namespace, name), None
        else:
            meta = change.object.metadata
            key, claim = (meta.namespace, meta.name), volumes.read_claim(change.object)
        before = self._volumes.claims.pop(key, None)
        if before is not None and before.volume:
            self._claims_of[before.volume].discard(key)
            if not self._claims_of[before.volume]:
                del self._claims_of[before.volume]
        if claim is not None:
            self._volumes.claims[key] = claim
            if claim.volume:
                self._claims_of.setdefault(claim.volume, set()).add(key)
        await self._tell([key])

    async def on_volume(self, change: Seen[PersistentVolume] | Gone) -> None:
        """Take in a volume's change, for the claims that are bound to it."""
        if isinstance(change, Gone):
            name = change.key
            self._volumes.attached.pop(name, None)
        else:
            name = change.object.metadata.name
            self._volumes.attached[name] = volumes.read_volume(change.object)
        await self._tell(sorted(self._claims_of.get(name, ())))

    async def on_storage_class(self, change: Seen[StorageClass] | Gone) -> None:
        """Take in a storage class's change; any claim may use it."""
        if isinstance(change, Gone):
            self._volumes.provisioners.pop(change.key, None)
        else:
            self._volumes.provisioners[change.object.metadata.name] = change.object.provisioner
        await self._tell(sorted(self._volumes.claims))

    async def on_driver(self, change: Seen[CsiDriver] | Gone) -> None:
        """Take in a CSI driver's change; any claim may use it."""
        if isinstance(change, Gone):
            self._volumes.drivers.pop(change.key, None)
        else:
            attached = change.object.spec.attach_required is not False
            self._volumes.drivers[change.object.metadata.name] = attached
        await self._tell(sorted(self._volumes.claims))

    async def _tell(self, keys: Iterable[ClaimKey]) -> None:
        for key in keys:
            once = self._volumes.attaches_once(key)
            if once != (key in self._told):
                (self._told.add if once else self._told.discard)(key)
                await self._put(VolumeClaimSeen(time.monotonic(), *key, once))
