"""The contract's descriptors, for gRPC reflection (grpcurl needs it) and for protobuf's own message classes.

betterproto2's messages have no descriptors. buf writes them next to the generated code. They get a pool of
their own, so that another library in the process can load the same contract.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2


@cache
def message(name: str) -> Any:
    """Return the class that protobuf's own runtime makes for a message of our contract.

    It reads and writes long lists in C, where betterproto2 handles them item by item in Python.

    Raises:
        KeyError: the contract has no such message.
    """
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"muster.v1.{name}"))


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """Return the pool with our contract, health and reflection itself."""
    contract = resources.files("muster.adapters.grpc.generated").joinpath("descriptors.binpb").read_bytes()
    files = list(descriptor_pb2.FileDescriptorSet.FromString(contract).file)
    for module in (health_pb2, reflection_pb2):
        copy = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(copy)
        files.append(copy)
    new_pool = descriptor_pool.DescriptorPool()
    for file in files:
        new_pool.Add(file)
    return new_pool
