"""The adapters: the Kubernetes API, the shim, the planner's process, traces, metrics and HTTP.

Only this package may import kubernetes, grpc, aiohttp and opentelemetry, and modules that load slowly are
imported when needed. Adapters translate and transport. `muster.gangs` decides.
"""
