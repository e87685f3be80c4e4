"""Draw each dashboard with Grafana's own panels over a live Prometheus, as PNG.

    python -m tests.dashboards.drawing BUILT PICTURES

BUILT is where vite has put this folder's page. The data are those of a local cluster on which gangs of three
namespaces come and go for some minutes. `make dashboards` does all of it. It needs node, npm and Chromium.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3

from e2e import objects
from local_cluster.api import Api, ApiError
from local_cluster.cluster import LocalCluster
from local_cluster.prometheus import Prometheus
from local_cluster.stack import Stack
from tests.dashboards.panels import VALUES, dashboards, panels

NODES = Path(__file__).with_name("nodes.yaml")
TEAMS = ("speech", "vision", "search")
SHOWN_S = 150
GANG_EVERY_S = 1.5
MAX_GANGS = 26
SEED = 7
WIDTH, CELL = 1500, 34
DRAWN_WITHIN_S = 90.0


def main(built: Path, pictures: Path) -> None:
    """Run the cluster, and draw."""
    pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder) / "cluster") as cluster,
        Stack(cluster, Path(folder) / "stack") as stack,
        Prometheus(Path(folder) / "prometheus", stack) as prometheus,
    ):
        cluster.apply_shape(NODES)
        _gangs_come_and_go(cluster.api)
        for file in dashboards():
            name = file.removesuffix(".json")
            print(_drawn(built, pictures / f"dashboard-{name}.png", name, prometheus.url))


def _gangs_come_and_go(api: Api) -> None:
    """Create gangs of many sizes; from some number on the oldest ends for each that comes."""
    chance = random.Random(SEED)
    for team in TEAMS:
        api.post("/api/v1/namespaces", {"metadata": {"name": team}})
    alive: list[tuple[str, list[str]]] = []
    until = time.monotonic() + SHOWN_S
    number = 0
    while time.monotonic() < until:
        number += 1
        team, name = chance.choice(TEAMS), f"train-{number}"
        members, gpus = chance.choice([(1, 1), (2, 4), (2, 8), (4, 8), (8, 2), (8, 8), (16, 1), (40, 8)])
        present = members - (chance.random() < 0.1)  # some gangs wait for a member
        pods = [
            objects.pod(f"{name}-{rank}", gpus=gpus, gang=objects.ack(name, members))
            for rank in range(present)
        ]
        for pod in pods:
            _patient(lambda team=team, pod=pod: api.post(f"/api/v1/namespaces/{team}/pods", pod))
        alive.append((team, [pod["metadata"]["name"] for pod in pods]))
        if len(alive) > MAX_GANGS:
            team, names = alive.pop(0)
            for pod_name in names:
                api.send("DELETE", f"/api/v1/namespaces/{team}/pods/{pod_name}?gracePeriodSeconds=0")
        time.sleep(GANG_EVERY_S)


def _patient(create: Any) -> None:
    """A namespace takes pods as soon as its service account is there."""
    for _ in range(100):
        try:
            create()
        except ApiError:
            time.sleep(0.1)
        else:
            return
    create()


def _drawn(built: Path, picture: Path, name: str, prometheus: str) -> Path:
    """Write the picture of one dashboard."""
    dashboard = dashboards()[f"{name}.json"]
    height = CELL * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels(dashboard)) + 8
    with _Page(built, prometheus) as page, tempfile.TemporaryDirectory() as profile:
        command = [_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={WIDTH},{height}"]
        command += ["--virtual-time-budget=60000", f"--screenshot={picture}", f"{page.url}?dashboard={name}"]
        subprocess.run(command, check=True, timeout=DRAWN_WITHIN_S, capture_output=True)
    return picture


def _browser() -> str:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("error: no chromium and no google-chrome on PATH: install one of them")
    return program


class _Page:
    """Serves the page, what it is about, and the answers of Prometheus, all from one address."""

    def __init__(self, built: Path, prometheus: str) -> None:
        http = urllib3.PoolManager(retries=False)

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(built))

            def do_GET(self) -> None:
                address = urlsplit(self.path)
                if address.path == "/about":
                    (name,) = parse_qs(address.query)["dashboard"]
                    about = {"dashboard": dashboards()[f"{name}.json"], "values": VALUES, "seconds": SHOWN_S}
                    self._answer(json.dumps(about).encode())
                elif address.path.startswith("/api/"):
                    self._answer(http.request("GET", prometheus + self.path).data)
                else:
                    super().do_GET()

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/"

    def __enter__(self) -> _Page:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
