"""What the kubelet's gRPC probe asks: whether the agent is ready."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from muster.adapters.agent.generated.grpc.health import v1 as health

SERVICE = "grpc.health.v1.Health"


class Probe:
    """Answers on a port of the pod; on none if it is 0. `ready` may change at any time."""

    def __init__(self, port: int) -> None:
        self.ready = False
        self._port = port
        self._server: Any = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        if not self._port:
            return
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        check = grpc.unary_unary_rpc_method_handler(
            self._check, request_deserializer=health.HealthCheckRequest.parse, response_serializer=bytes
        )
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Check": check})
        self._server.add_generic_rpc_handlers((handler,))
        try:
            self._server.add_insecure_port(f"0.0.0.0:{self._port}")
        except RuntimeError as problem:
            raise OSError(f"can't listen on port {self._port}: {problem}") from problem
        await self._server.start()

    async def stop(self) -> None:
        """End it."""
        if self._server is not None:
            await self._server.stop(None)

    async def _check(self, request: health.HealthCheckRequest, _: Any) -> health.HealthCheckResponse:
        """Say SERVING of the process itself, and of the service "ready" once the kubelet took the GPUs."""
        serving = self.ready or request.service != "ready"
        status = health.HealthCheckResponseServingStatus
        return health.HealthCheckResponse(status=status.SERVING if serving else status.NOT_SERVING)
