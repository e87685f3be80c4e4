"""The first process of a real node, in namespaces of its own: it makes their root and starts the programs.

    inside.py SOCKET_FD SETTINGS_FILE

The socket leads to the keeper. When it closes, this process ends, and the kernel then ends all others of
the node and takes its mounts and its network back. When a program of the node ends, the node does too.
Standard library only, imported before the root changes: it starts with `python -I -S`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HOME = Path("/opt/node")
READ_ONLY = ("usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
START_DEADLINE_S = 600.0
POLL_EVERY_S = 0.05


def run(*argv: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def listen(port: int) -> socket.socket:
    """A socket at the API server's address in this node; the keeper accepts on it and passes bytes on."""
    run("ip", "link", "set", "lo", "up")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def join_network(address: str, machine: str) -> None:
    """Give the link that the keeper moved here its address and its routes."""
    run("ip", "address", "add", f"{address}/32", "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", f"{machine}/32", "dev", "eth0", "src", address)
    run("ip", "route", "add", "default", "via", machine, "dev", "eth0", "onlink", "src", address)


def bind(source: str | Path, target: Path, *options: str) -> None:
    """Show a file or a folder of the machine in the node."""
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    run("mount", "--rbind", str(source), str(target))
    if options:
        run("mount", "-o", ",".join(("remount", "bind", *options)), str(target))


def make_root(root: Path, settings: dict[str, Any]) -> None:
    """Put a root together in memory: the machine's programs, read-only, and empty folders for all that is
    written; then make it the root of this namespace."""
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root))
    for name in READ_ONLY:
        original = Path("/") / name
        if original.is_symlink():
            (root / name).symlink_to(os.readlink(original))
        elif original.is_dir():
            bind(original, root / name, "ro")
    bind("/dev", root / "dev")
    bind("/sys", root / "sys")
    for name in ("proc", "tmp", "var/log", "var/tmp", "root", "old"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for path in settings["shown"]:
        bind(path, root / Path(path).relative_to("/"), "ro")
    for name in ("run", "var/lib"):  # mounts of their own: the kubelet measures what /var/lib holds
        (root / name).mkdir()
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / name))
    run("mount", "-t", "proc", "proc", str(root / "proc"))
    home = root / HOME.relative_to("/")
    for name, program in settings["programs"].items():
        bind(program, home / "bin" / name, "ro")
    bind(settings["cni"], home / "cni", "ro")
    bind(settings["config"], home / "config", "ro")
    run("pivot_root", str(root), str(root / "old"))
    os.chdir("/")
    run("umount", "-l", "/old")
    run("mount", "--make-rshared", "/")  # volumes of pods are mounted by the kubelet for others to see


def guard_sysctls(settings: dict[str, str]) -> None:
    """Cover settings of the whole machine by files with the values that the kubelet wants to see."""
    folder = Path("/run/sysctl")
    folder.mkdir()
    for name, value in settings.items():
        file = folder / name.replace("/", "_")
        file.write_text(f"{value}\n")
        run("mount", "--bind", str(file), f"/proc/sys/{name}")


class Programs:
    """The programs of the node, by process id."""

    def __init__(self, logs: dict[str, str]) -> None:
        # opened before the root changes
        self._logs = {name: open(path, "ab") for name, path in logs.items()}  # noqa: SIM115
        self._names: dict[int, str] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start a program of the node; what it prints goes to its log."""
        log = self._logs[name]
        environment = {"PATH": f"{HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        process = subprocess.Popen(
            [f"{HOME}/bin/{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        self._names[process.pid] = name

    def wait(self) -> tuple[str, int]:
        """Reap all processes whose parents ended, until a program of the node has ended; its exit status."""
        while True:
            pid, status = os.wait()
            if pid in self._names:
                return self._names[pid], os.waitstatus_to_exitcode(status)


def import_images() -> None:
    """Wait until containerd answers, and give it the images."""
    client = [f"{HOME}/bin/ctr", "--namespace", "k8s.io"]
    until = time.monotonic() + START_DEADLINE_S
    while subprocess.run([*client, "version"], capture_output=True, check=False).returncode != 0:
        if time.monotonic() > until:
            sys.exit(f"containerd does not answer after {START_DEADLINE_S:g} s")
        time.sleep(POLL_EVERY_S)
    run(*client, "images", "import", "--local", f"{HOME}/config/images.tar")


def end_with(keeper: socket.socket) -> None:
    """End this process when the keeper is gone or says so by closing the socket."""
    keeper.recv(1)
    os._exit(0)


def main(descriptor: str, file: str) -> None:
    """Become a node."""
    settings = json.loads(Path(file).read_text())
    keeper = socket.socket(fileno=int(descriptor))
    listener = listen(settings["port"])
    socket.send_fds(keeper, [b"1"], [listener.fileno()])
    listener.close()
    if keeper.recv(1) != b"1":  # the link is here, or the keeper is gone
        sys.exit("the keeper ended")
    threading.Thread(target=end_with, args=(keeper,), daemon=True).start()
    programs = Programs(settings["logs"])
    join_network(settings["address"], settings["machine"])
    make_root(Path(settings["root"]), settings)
    guard_sysctls(settings["sysctls"])
    programs.start("containerd", "--config", f"{HOME}/config/containerd.toml")
    import_images()
    commands = {command[0]: command for command in settings["commands"]}
    for command in commands.values():
        programs.start(*command)
    while (ended := programs.wait())[0] in commands and ended[1] in (0, -signal.SIGTERM):
        # it was told to end, as a test does: another one is started, as systemd would
        programs.start(*commands[ended[0]])
    sys.exit(f"{ended[0]} ended (status {ended[1]})")


if __name__ == "__main__":
    main(*sys.argv[1:])
