"""The one container image of real nodes, written here: a shell with its tools, and nothing to pull.

It is an OCI image layout in a tar file, as `ctr images import` reads it.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "muster.local/busybox:1"
PAUSE = "muster.local/pause:1"
"""The same image under a second name, with a command that waits: the sandbox of each pod."""

TOOLS = ("sh", "env", "echo", "cat", "ls", "sleep", "sort", "grep", "date", "hostname", "ip", "ping", "wget")
MEDIA = "application/vnd.oci.image"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_images(path: Path, busybox: Path) -> None:
    """Write both images into one tar file."""
    layer = _layer(busybox.read_bytes())
    blobs = [layer]
    manifests = []
    for name, command in ((IMAGE, ["/bin/sh"]), (PAUSE, ["/bin/sleep", "2147483647"])):
        config, manifest = _image(layer, command)
        blobs += [config, manifest]
        entry = _descriptor("manifest.v1+json", manifest)
        manifests.append(entry | {"annotations": {"io.containerd.image.name": name}})
    index = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", index)
        for blob in blobs:
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)


def _image(layer: bytes, command: list[str]) -> tuple[bytes, bytes]:
    """The configuration and the manifest of an image of one layer."""
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    ).encode()
    return config, manifest


def _layer(busybox: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("bin", "etc", "tmp", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        _add(tar, "bin/busybox", busybox)
        for tool in TOOLS:
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    return file.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": f"{MEDIA}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
