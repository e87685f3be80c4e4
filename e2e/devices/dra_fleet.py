"""Real nodes where a DRA driver serves the GPUs as nvidia.com/gpu."""

from __future__ import annotations

import json

from e2e.devices.fleet import Fleet
from e2e.devices.members import Member
from e2e.dra import GPU, GROUP
from e2e.facts import ALLOCATION
from local_cluster.api import Object
from local_cluster.real.nodes import DRA, DRA_DRIVER

NODES = ("dra-0", "dra-1")


class DraFleet(Fleet):
    """Two nodes, and the DeviceClass of their driver, by which pods get GPUs."""

    path = "DRA"
    keeps_order = False

    def start(self) -> None:
        """Start the nodes and Muster."""
        self.cluster.start_real_nodes(len(NODES), group=DRA)
        expression = f"device.driver == '{DRA_DRIVER}' && device.attributes['{DRA_DRIVER}'].type == 'gpu'"
        spec = {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": expression}}]}
        self.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": DRA_DRIVER}, "spec": spec})
        self.stack.start()

    def check_one(self, member: Member, pod: Object, *, away: bool = False) -> None:
        """Compare the devices with the GPUs as well; the GPUs are then those that the containers print."""
        allocation = json.loads(pod["metadata"]["annotations"][ALLOCATION])
        node = pod["spec"]["nodeName"]
        assert allocation["devices"] == [f"{DRA_DRIVER}/{node}/gpu-{gpu}" for gpu in allocation["gpus"]]
        super().check_one(member, pod, away=away)
