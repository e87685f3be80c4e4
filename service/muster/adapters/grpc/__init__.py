"""The contract with the shim (protos/), served over a unix socket.

`generated/` is made by `make generate` and not edited: betterproto2 messages, and `descriptors.binpb`, the
same contract as a FileDescriptorSet for reflection.
"""
