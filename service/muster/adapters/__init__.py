"""Where Muster meets the world: the Kubernetes API, the shim, traces, metrics and HTTP.

Only here may kubernetes, grpc, aiohttp and opentelemetry be imported, and only lazily where they are slow to
load. Adapters translate and carry; what to do is decided in `muster.gangs`.
"""
