"""Watches of `e2e.client`, against a server that never stops talking."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.client import Client, Watch
from local_cluster.api import Object
from local_cluster.certificates import ClusterKeys
from local_cluster.patience import HANG_S

EVENT = b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n'
CHUNK = EVENT * 1000
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Talker(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass  # the request's head
        with contextlib.suppress(OSError):  # until the client has gone
            self.wfile.write(HEAD)
            while True:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    keys = ClusterKeys.create(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keys.api_server.certificate, keys.api_server.key)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Talker) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Client(f"https://127.0.0.1:{server.server_address[1]}", str(keys.ca.pair.certificate))
        server.shutdown()


def _read(watch: Watch, reads: threading.Event) -> list[Object]:
    events = []
    for event in watch:
        events.append(event)
        reads.set()
    return events


def test_a_watch_that_is_closed_while_it_is_read_ends_with_whole_events(client: Client) -> None:
    for _ in range(60):  # where the reader is at that moment is chance
        watch, reads = client.watch("/api/v1/pods", "1"), threading.Event()
        with ThreadPoolExecutor(max_workers=1) as readers:
            reading = readers.submit(_read, watch, reads)
            assert reads.wait(HANG_S)
            watch.close()
            events = reading.result(HANG_S)
        assert all(event == json.loads(EVENT) for event in events)
