"""A Prometheus on this machine, which scrapes both of Muster's processes as one in a cluster does.

with Prometheus(directory, stack, native=True) as prometheus:
    prometheus.query("muster_shim_session_up")      # [(labels, value), …]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import urllib3

from local_cluster.build import binary
from local_cluster.certificates import ClusterKeys, write_private
from local_cluster.components import HOST
from local_cluster.patience import HANG_S
from local_cluster.ports import free_port, start_on_free_ports
from local_cluster.processes import Process
from local_cluster.stack import Stack

SCRAPE_EVERY = "2s"
"""Also how long a scrape may take: a busy machine needs more than a second."""
LABELS = {
    "namespace": "muster-system",
    "pod": "muster-0",
    "service": "muster-metrics",
}
"""Of each series, as a ServiceMonitor adds them. They win over labels of the same name in the metrics."""

SeriesValues = list[tuple[dict[str, str], float]]


class QueryFailed(RuntimeError):
    """Prometheus refused a query. The text has its reason."""


class Prometheus:
    """One Prometheus with its files in `directory`. With `native` it stores all histograms as native ones."""

    def __init__(self, directory: Path, stack: Stack, *, native: bool = False) -> None:
        self._directory = directory.absolute()
        self._stack, self._native = stack, native
        self._process: Process | None = None
        self._port = 0
        self._http = urllib3.PoolManager(retries=False, timeout=HANG_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the address of its API."""
        return f"http://{HOST}:{self._port}"

    def query(self, expr: str) -> SeriesValues:
        """Return what an expression gives now: labels and value of each series.

        Raises:
            QueryFailed: it is not understood.
        """
        series = self.get("query", query=expr)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in series]

    def get(self, endpoint: str, **fields: str) -> Any:
        """Return the data of an answer of its API.

        Raises:
            QueryFailed: it answered with an error.
        """
        answer = self._http.request("GET", f"{self.url}/api/v1/{endpoint}", fields=fields).json()
        if answer["status"] != "success":
            raise QueryFailed(f"{endpoint} {fields}: {answer.get('error')}")
        return answer["data"]

    def start(self) -> None:
        """Start it; return when it answers.

        Raises:
            ProcessError, BuildError: it can't be started.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = self._directory / "prometheus.json"
        write_private(configuration, json.dumps(self._configuration()).encode())
        start_on_free_ports(lambda: self._start(configuration), self.stop)

    def stop(self) -> None:
        """Stop it. Does nothing if it does not run."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _start(self, configuration: Path) -> None:
        self._port = free_port()
        self._process = Process(
            "prometheus",
            [
                binary("prometheus"),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address={HOST}:{self._port}",
                "--enable-feature=exemplar-storage",
            ],
            log=self._directory / "prometheus.log",
        )
        self._process.start()
        self._process.wait_ready(self._ready)

    def _configuration(self) -> Mapping[str, object]:
        keys = ClusterKeys.create(self._stack.cluster.layout.pki)
        tls = {
            "ca_file": str(keys.ca.pair.certificate),
            "cert_file": str(keys.admin.certificate),
            "key_file": str(keys.admin.key),
        }
        return {
            "global": {
                "scrape_interval": SCRAPE_EVERY,
                "scrape_timeout": SCRAPE_EVERY,
                "scrape_native_histograms": self._native,
                "convert_classic_histograms_to_nhcb": self._native,
            },
            "scrape_configs": [
                _scraped("http-service", self._stack.service_url, {}),
                _scraped("https-shim", self._stack.scheduler_url, {"scheme": "https", "tls_config": tls}),
            ],
        }

    def _ready(self) -> bool:
        try:
            return self._http.request("GET", f"{self.url}/-/ready").status == 200
        except urllib3.exceptions.HTTPError as problem:
            raise OSError(str(problem)) from problem


def _scraped(endpoint: str, url: str, more: Mapping[str, object]) -> Mapping[str, object]:
    targets = {"targets": [url.partition("//")[2]], "labels": LABELS | {"endpoint": endpoint}}
    return {"job_name": endpoint, "static_configs": [targets], **more}
