"""The few fields of resource.k8s.io objects that are read, for msgspec to decode. Names are the API's."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.dialects.objects import Metadata
from muster.dialects.quantities import Quantity


class _Object(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """API objects are camelCase; what is not named here is skipped while decoding."""


class Attribute(_Object, frozen=True):
    """A value of a device's attribute: one of these is set."""

    string: str | None = None
    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None


class Use(_Object, frozen=True):
    """An entry of a list. Only its presence counts."""


class CounterValue(_Object, frozen=True):
    """How much there is of a counter, or how much of it a device consumes."""

    value: str = ""


class CounterSet(_Object, frozen=True):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, CounterValue] | None = None


class CounterUse(_Object, frozen=True):
    """What a device consumes of one counter set while it is allocated."""

    counter_set: str = ""
    counters: dict[str, CounterValue] | None = None


class DeviceTaint(_Object, frozen=True):
    """A taint of a device."""

    key: str = ""
    effect: str = ""


class ValidRange(_Object, frozen=True):
    """The amounts of a capacity that a claim may take."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(_Object, frozen=True):
    """What claims take of a capacity, by what they ask for."""

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: ValidRange | None = None


class DeviceCapacity(_Object, frozen=True):
    """How much of something a device has."""

    value: Quantity = 0
    request_policy: RequestPolicy | None = None


class SliceDevice(_Object, frozen=True):
    """A device of a ResourceSlice."""

    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[CounterUse] | None = None
    taints: list[DeviceTaint] | None = None
    binding_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class SlicePool(_Object, frozen=True):
    """The pool that a slice is a part of."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(_Object, frozen=True):
    """`spec` of a ResourceSlice."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str | None = None
    devices: list[SliceDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(_Object, frozen=True):
    """Devices of one node, or counters of a pool, as a DRA driver publishes them."""

    metadata: Metadata = Metadata()
    spec: SliceSpec = SliceSpec()


class CelSelector(_Object, frozen=True):
    """An expression over a device."""

    expression: str = ""


class DeviceSelector(_Object, frozen=True):
    """An entry of a DeviceClass's selectors."""

    cel: CelSelector | None = None


class DeviceClassSpec(_Object, frozen=True):
    """`spec` of a DeviceClass."""

    selectors: list[DeviceSelector] | None = None
    extended_resource_name: str | None = None


class DeviceClassObject(_Object, frozen=True):
    """A kind of devices, and the extended resource by which pods may ask for them."""

    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class TaintedDevices(_Object, frozen=True):
    """Which devices a rule taints: those that agree with all that is said."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(_Object, frozen=True):
    """`spec` of a DeviceTaintRule."""

    device_selector: TaintedDevices | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(_Object, frozen=True):
    """A taint that an administrator gives devices."""

    metadata: Metadata = Metadata()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


class AllocatedDevice(_Object, frozen=True):
    """A device that is allocated to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, Quantity] | None = None


class AllocatedDevices(_Object, frozen=True):
    """`devices` of an allocation."""

    results: list[AllocatedDevice] | None = None


class ClaimAllocation(_Object, frozen=True):
    """`status.allocation` of a ResourceClaim."""

    devices: AllocatedDevices = AllocatedDevices()


class Consumer(_Object, frozen=True):
    """An entry of `status.reservedFor`."""

    resource: str = ""
    uid: str = ""


class ResourceClaimStatus(_Object, frozen=True):
    """`status` of a ResourceClaim."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[Consumer] | None = None


class CapacityAsked(_Object, frozen=True):
    """How much of its capacities a device must have. Of one that claims share, each takes that much."""

    requests: dict[str, Quantity] | None = None


class SubRequest(_Object, frozen=True):
    """A subrequest of a request."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    tolerations: list[Use] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    capacity: CapacityAsked | None = None


class ExactRequest(_Object, frozen=True):
    """A request for devices of one class."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    tolerations: list[Use] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    capacity: CapacityAsked | None = None


class Request(_Object, frozen=True):
    """An entry of a claim's requests: one of the two is set."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[SubRequest] | None = None


class DeviceConstraint(_Object, frozen=True):
    """What devices of these requests must have in common, or not; of all requests, if none is named."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfig(_Object, frozen=True):
    """What a driver is told about the devices of a claim. The parameters are an object of the driver."""

    driver: str = ""
    parameters: Any = None


class DeviceConfig(_Object, frozen=True):
    """An entry of a claim's config."""

    opaque: OpaqueConfig | None = None


class ClaimDevices(_Object, frozen=True):
    """`devices` of a claim's spec."""

    requests: list[Request] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[DeviceConfig] | None = None


class ClaimSpec(_Object, frozen=True):
    """`spec` of a ResourceClaim."""

    devices: ClaimDevices = ClaimDevices()


class ResourceClaim(_Object, frozen=True):
    """A claim to devices."""

    metadata: Metadata = Metadata()
    spec: ClaimSpec = ClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ClaimTemplateSpec(_Object, frozen=True):
    """`spec` of a ResourceClaimTemplate."""

    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(_Object, frozen=True):
    """What Kubernetes makes the claims of pods from."""

    metadata: Metadata = Metadata()
    spec: ClaimTemplateSpec = ClaimTemplateSpec()
