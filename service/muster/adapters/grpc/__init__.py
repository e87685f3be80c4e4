"""The contract with the shim (protos/), served over a unix socket.

`make generate` writes `generated/`, which is not edited: betterproto2 messages, and `descriptors.binpb`, the
same contract as a FileDescriptorSet for reflection.
"""
