"""Descriptors for gRPC reflection, so that grpcurl and the like can talk to the socket.

betterproto2's messages have none; buf writes them beside the generated code, and they are loaded into a pool
of their own: the process-wide pool stays free for others that might load the same contract.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2


def message(name: str) -> Any:
    """The class of a message of our contract by protobuf's own runtime: for long messages that come in, which
    betterproto2 parses item by item in Python."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"muster.v1.{name}"))


def pool() -> descriptor_pool.DescriptorPool:
    """A pool with our contract, health and reflection itself."""
    contract = resources.files("muster.adapters.grpc.generated").joinpath("descriptors.binpb").read_bytes()
    files = list(descriptor_pb2.FileDescriptorSet.FromString(contract).file)
    for module in (health_pb2, reflection_pb2):
        copy = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(copy)
        files.append(copy)
    made = descriptor_pool.DescriptorPool()
    for file in files:
        made.Add(file)
    return made
