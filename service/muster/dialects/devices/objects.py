"""The few fields of resource.k8s.io objects that are read, for msgspec to decode. Names are the API's."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.dialects.objects import ApiObject, Metadata, Presence
from muster.dialects.quantities import Quantity


class Attribute(ApiObject, frozen=True):
    """A value of a device's attribute. One of the fields is set."""

    string: str | None = None
    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None


class CounterValue(ApiObject, frozen=True):
    """The amount of a counter that exists, or that a device consumes."""

    value: str = ""


class CounterSet(ApiObject, frozen=True):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, CounterValue] | None = None


class CounterUse(ApiObject, frozen=True):
    """The counters of one set that a device consumes while it is allocated."""

    counter_set: str = ""
    counters: dict[str, CounterValue] | None = None


class DeviceTaint(ApiObject, frozen=True):
    """A taint of a device."""

    key: str = ""
    effect: str = ""


class ValidRange(ApiObject, frozen=True):
    """The amounts of a capacity that a claim may take."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(ApiObject, frozen=True):
    """The rule by which a claim's request for a capacity becomes the consumed amount."""

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: ValidRange | None = None


class DeviceCapacity(ApiObject, frozen=True):
    """The amount of a capacity that a device has."""

    value: Quantity = 0
    request_policy: RequestPolicy | None = None


class SliceDevice(ApiObject, frozen=True):
    """A device of a ResourceSlice."""

    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[CounterUse] | None = None
    taints: list[DeviceTaint] | None = None
    binding_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class SlicePool(ApiObject, frozen=True):
    """The pool that a slice is a part of."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(ApiObject, frozen=True):
    """`spec` of a ResourceSlice."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str | None = None
    devices: list[SliceDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(ApiObject, frozen=True):
    """Devices of one node, or counters of a pool, as a DRA driver publishes them."""

    metadata: Metadata = Metadata()
    spec: SliceSpec = SliceSpec()


class CelSelector(ApiObject, frozen=True):
    """An expression over a device."""

    expression: str = ""


class DeviceSelector(ApiObject, frozen=True):
    """An entry of a DeviceClass's selectors."""

    cel: CelSelector | None = None


class DeviceClassSpec(ApiObject, frozen=True):
    """`spec` of a DeviceClass."""

    selectors: list[DeviceSelector] | None = None
    extended_resource_name: str | None = None


class DeviceClassObject(ApiObject, frozen=True):
    """A kind of devices, and the extended resource by which pods may ask for them."""

    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


class TaintedDevices(ApiObject, frozen=True):
    """The devices that a rule taints: devices that match all fields which are set."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(ApiObject, frozen=True):
    """`spec` of a DeviceTaintRule."""

    device_selector: TaintedDevices | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(ApiObject, frozen=True):
    """A taint that an administrator gives devices."""

    metadata: Metadata = Metadata()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


class AllocatedDevice(ApiObject, frozen=True):
    """A device that is allocated to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, Quantity] | None = None


class AllocatedDevices(ApiObject, frozen=True):
    """`devices` of an allocation."""

    results: list[AllocatedDevice] | None = None


class ClaimAllocation(ApiObject, frozen=True):
    """`status.allocation` of a ResourceClaim."""

    devices: AllocatedDevices = AllocatedDevices()


class Consumer(ApiObject, frozen=True):
    """An entry of `status.reservedFor`."""

    resource: str = ""
    uid: str = ""


class ResourceClaimStatus(ApiObject, frozen=True):
    """`status` of a ResourceClaim."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[Consumer] | None = None


class CapacityRequirements(ApiObject, frozen=True):
    """The capacity that a device must have. If claims share the device, each claim consumes that much."""

    requests: dict[str, Quantity] | None = None


class SubRequest(ApiObject, frozen=True):
    """A subrequest of a request."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    tolerations: list[Presence] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    capacity: CapacityRequirements | None = None


class ExactRequest(SubRequest, frozen=True):
    """A request for devices of one class."""

    admin_access: bool | None = None


class ClaimRequest(ApiObject, frozen=True):
    """An entry of a claim's requests. One of `exactly` and `first_available` is set."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[SubRequest] | None = None


class DeviceConstraint(ApiObject, frozen=True):
    """An attribute on which the devices of these requests must agree, or differ. No requests means all."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfig(ApiObject, frozen=True):
    """Parameters for a driver, about the devices of a claim, as an object of the driver's API."""

    driver: str = ""
    parameters: Any = None


class DeviceConfig(ApiObject, frozen=True):
    """An entry of a claim's config."""

    opaque: OpaqueConfig | None = None


class ClaimDevices(ApiObject, frozen=True):
    """`devices` of a claim's spec."""

    requests: list[ClaimRequest] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[DeviceConfig] | None = None


class ResourceClaimSpec(ApiObject, frozen=True):
    """`spec` of a ResourceClaim."""

    devices: ClaimDevices = ClaimDevices()


class ResourceClaim(ApiObject, frozen=True):
    """A claim to devices."""

    metadata: Metadata = Metadata()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ClaimTemplateSpec(ApiObject, frozen=True):
    """`spec` of a ResourceClaimTemplate."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(ApiObject, frozen=True):
    """The template from which Kubernetes makes the claims of pods."""

    metadata: Metadata = Metadata()
    spec: ClaimTemplateSpec = ClaimTemplateSpec()
