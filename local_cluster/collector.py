"""An OpenTelemetry Collector on this machine: it writes the spans that it receives to a file.

with Collector(directory) as collector:
    …                            # processes with OTEL_EXPORTER_OTLP_ENDPOINT=collector.url
    collector.spans()            # all spans so far
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from local_cluster.build import binary
from local_cluster.certificates import write_private
from local_cluster.components import HOST
from local_cluster.ports import free_port, start_on_free_ports
from local_cluster.processes import Process
from local_cluster.traces import Span, spans_of

FLUSH_MS = 200


class Collector:
    """One collector with its files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._process: Process | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """Host and port that take OTLP over gRPC, without TLS."""
        return f"{HOST}:{self._port}"

    @property
    def file(self) -> Path:
        """What was received: one JSON object a line."""
        return self._directory / "traces.jsonl"

    def spans(self) -> list[Span]:
        """Return all spans that were written so far."""
        if not self.file.is_file():
            return []
        whole = [line for line in self.file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [span for line in whole for span in spans_of(json.loads(line))]

    def start(self) -> None:
        """Start it; return when it listens.

        Raises:
            ProcessError, BuildError: it can't be started.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        start_on_free_ports(self._start, self.stop)

    def stop(self) -> None:
        """Stop it. Does nothing if it does not run."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _start(self) -> None:
        self._port = free_port()
        configuration = self._directory / "collector.json"
        write_private(configuration, json.dumps(self._configuration()).encode())
        self._process = Process(
            "otel-collector",
            [binary("otel-collector"), f"--config=file:{configuration}"],
            log=self._directory / "otel-collector.log",
        )
        self._process.start()
        self._process.wait_ready(self._listens)

    def _configuration(self) -> Mapping[str, object]:
        return {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.endpoint}}}},
            "exporters": {"file": {"path": str(self.file), "flush_interval": f"{FLUSH_MS}ms"}},
            "service": {
                # else it opens a port for its own metrics
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        }

    def _listens(self) -> bool:
        with socket.create_connection((HOST, self._port), timeout=1.0):
            return True


def exporting_to(endpoint: str) -> dict[str, str]:
    """Return the environment with which a process sends its spans there, soon; {} for no endpoint."""
    if not endpoint:
        return {}
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{endpoint}", "OTEL_BSP_SCHEDULE_DELAY": str(FLUSH_MS)}
