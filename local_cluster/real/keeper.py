"""The process of a real node on this machine: it starts the node, and removes all of it when it ends.

    python -m local_cluster.real.keeper SETTINGS_FILE

It ends by SIGTERM, which the kernel also sends when the process that started it is gone, whatever way it
went. Only cgroups outlive a keeper that is killed itself; `nodes.sweep` removes those.

Between it and the node's first process (inside.py) there is a socket: the node sends its listening socket,
on which the keeper is the API server, and gets a byte when its link is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from local_cluster.certificates import Authority, KeyPair, write_private
from local_cluster.patience import HANG_S, stretched
from local_cluster.places import LAUNCHER
from local_cluster.real import cgroups, configuration, network
from local_cluster.real.configuration import CONFIG, REAL, Address

INSIDE = Path(__file__).with_name("inside.py")
NAMESPACES = ("--mount", "--propagation=private", "--net", "--pid", "--uts", "--ipc", "--fork")
END_DEADLINE_S = 20.0
CHUNK = 64 * 1024
FAKE_GPUS = 16
"""Containerd can give this many GPUs to containers; a node has no more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a keeper is told, in a file. `cgroup` and `link` are names that no other node has; `folder` gets
    the node's configuration. `server` is the program that serves the GPUs, with its arguments; [] for none.
    `shown` are folders and files of this machine that the node has at the same place, read-only.
    `kubelet_flags` are added to the kubelet's command line."""

    name: str
    cgroup: str
    link: str
    folder: Path
    pki: Path
    kubeconfig: Path
    api_port: int
    server: list[str]
    programs: dict[str, Path]
    cni: Path
    images: Path
    logs: dict[str, Path]
    shown: list[Path]
    kubelet_flags: list[str]

    def write(self, file: Path) -> None:
        """Write them for the keeper."""
        write_private(file, msgspec.json.encode(asdict(self), enc_hook=str))

    @classmethod
    def read(cls, file: Path) -> Settings:
        """Read what `write` wrote."""
        return msgspec.json.decode(
            file.read_bytes(), type=cls, dec_hook=lambda kind, value: kind(value), strict=True
        )


def write_configuration(settings: Settings, address: Address) -> Path:
    """Write all that the node reads; return the file for its first process."""
    folder = settings.folder
    root = folder.with_name(f"{folder.name}.root")
    root.mkdir(exist_ok=True)
    for name in ("cni", "cdi"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    ca = Authority.create(settings.pki, "ca")
    serving = ca.issue(
        f"serving-{settings.name}-{address.number}",
        f"system:node:{settings.name}",
        ["system:nodes"],
        serves=(settings.name, address.node),
    )
    for name, source in _copies(settings, ca.pair, serving).items():
        write_private(folder / name, source.read_bytes())
    kubelet = configuration.kubelet(address, settings.cgroup)
    write_private(folder / "kubelet.json", json.dumps(kubelet, indent=2).encode())
    write_private(folder / "containerd.toml", configuration.containerd().encode())
    write_private(folder / "cni" / "pods.conflist", configuration.cni(address).encode())
    write_private(folder / "cdi" / "gpus.json", configuration.cdi(FAKE_GPUS).encode())
    inside = {
        "port": settings.api_port,
        "address": address.node,
        "machine": configuration.MACHINE,
        "programs": {name: str(path) for name, path in settings.programs.items()},
        "cni": str(settings.cni),
        "config": str(folder),
        "root": str(root),
        "logs": {name: str(path) for name, path in settings.logs.items()},
        "sysctls": configuration.SYSCTLS,
        "commands": [_kubelet(settings, address), *([settings.server] if settings.server else [])],
        "shown": [str(path) for path in settings.shown],
    }
    file = folder / "inside.json"
    write_private(file, json.dumps(inside, indent=2).encode())
    return file


def _copies(settings: Settings, ca: KeyPair, serving: KeyPair) -> dict[str, Path]:
    return {
        "ca.crt": ca.certificate,
        "serving.crt": serving.certificate,
        "serving.key": serving.key,
        "kubeconfig": settings.kubeconfig,
        "images.tar": settings.images,
    }


def _kubelet(settings: Settings, address: Address) -> list[str]:
    return [
        "kubelet",
        f"--config={CONFIG}/kubelet.json",
        f"--kubeconfig={CONFIG}/kubeconfig",
        f"--hostname-override={settings.name}",
        f"--node-ip={address.node}",
        f"--node-labels={REAL}=real",
        *settings.kubelet_flags,
    ]


class Keeper:
    """One node, from its link to the last of its processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Keep the node until SIGTERM; exit status 1 when it ends before that."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        settings = self._settings
        inner_end = f"{settings.link}n"
        cgroups.make(settings.cgroup)
        try:
            address = network.make_link(settings.link, inner_end)
            inside = write_configuration(settings, address)
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    node = _start(inside, theirs)
                try:
                    return await self._keep(node, ours, inner_end)
                finally:
                    ours.close()  # on which the node ends
                    _end(node)
        finally:
            network.remove_link(settings.link)
            cgroups.remove(settings.cgroup, stretched(END_DEADLINE_S))

    async def _keep(self, node: subprocess.Popen[bytes], ours: socket.socket, inner_end: str) -> int:
        ours.settimeout(HANG_S)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            print("the node ended before it said hello", file=sys.stderr)
            return 1
        network.move(inner_end, node.pid)
        server = await asyncio.start_server(self._forward, sock=socket.socket(fileno=descriptors[0]))
        ours.send(b"1")
        ended = asyncio.create_task(asyncio.to_thread(node.wait))
        stopped = asyncio.create_task(self._stop.wait())
        async with server:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return 0 if stopped.done() else 1

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection of the node on to the API server, which listens on this machine's loopback."""
        try:
            theirs = await asyncio.open_connection("127.0.0.1", self._settings.api_port)
        except OSError:  # down for the moment: the node sees a closed connection and comes again
            writer.close()
            return
        # cancelled when the node ends: streams of Python 3.11 would print that as an error
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pass(reader, theirs[1]), _pass(theirs[0], writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def _start(inside: Path, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the node's first process. It dies with this one, even if this one is killed."""
    descriptor = theirs.fileno()
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), "SIGKILL", ""]
    first = [sys.executable, "-I", "-S", str(INSIDE), str(descriptor), str(inside)]
    return subprocess.Popen(
        [*launcher, "unshare", *NAMESPACES, "--kill-child=KILL", "--", *first],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
    )


def _end(node: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the node, which takes all its processes along; kill it if it does not end."""
    try:
        node.wait(stretched(END_DEADLINE_S))
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait(stretched(END_DEADLINE_S))


def main(file: str) -> int:
    """Keep one node and return the exit status."""
    return asyncio.run(Keeper(Settings.read(Path(file))).run())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
