"""The parts of real nodes that need no root: what their programs read, and why a machine can't have them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from rich.console import Console

from local_cluster.cluster import ClusterError, LocalCluster
from local_cluster.demo import sandbox
from local_cluster.demo.real import Printed, check
from local_cluster.demo.show import Show
from local_cluster.processes import ProcessError
from local_cluster.real import cgroups, configuration, images, packages, support
from local_cluster.real.configuration import Address
from local_cluster.real.keeper import Settings

VERSION_1 = """\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
VERSION_2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n"

POLICY = """\
runc:
  Installed: (none)
  Candidate: 1.1.5+ds1-1+deb12u1
  Version table:
     1.1.5+ds1-1+deb12u1 500
busybox-static:
  Installed: (none)
  Candidate: (none)
  Version table:
"""


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        (VERSION_1, ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/unified"]),
        (VERSION_2, ["/sys/fs/cgroup"]),
        ("", []),
    ],
)
def test_cgroup_trees(mounts: str, expected: list[str]) -> None:
    assert [str(tree) for tree in cgroups.trees(mounts)] == expected


def fake_tree(folder: Path, monkeypatch: pytest.MonkeyPatch, controllers: str) -> Path:
    """A folder that looks like the cgroups of version 2."""
    mounts = folder / "mounts"
    tree = folder / "tree"
    tree.mkdir()
    mounts.write_text(f"cgroup2 {tree} cgroup2 rw 0 0\n")
    (tree / "cgroup.controllers").write_text(controllers)
    (tree / "cgroup.subtree_control").write_text("cpu memory")
    monkeypatch.setattr(cgroups, "MOUNTS", mounts)
    return tree


def test_cgroups_are_made_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = fake_tree(tmp_path, monkeypatch, "cpu cpuset io memory pids")
    assert cgroups.why_not() == ""
    cgroups.make("mine-a")
    assert (tree / "cgroup.subtree_control").read_text() == "+cpuset +pids"
    (tree / "mine-a" / "pods" / "pod").mkdir(parents=True)
    (tree / "another").mkdir()
    assert cgroups.named("mine") == {"mine-a"}
    cgroups.remove("mine-a", 1)
    assert cgroups.named("") == {"another", "cgroup.controllers", "cgroup.subtree_control"}


def test_a_cgroup_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = fake_tree(tmp_path, monkeypatch, "cpu")
    (tree / "mine").mkdir()
    (tree / "mine" / "process").touch()  # a folder that can't be removed, as one with processes
    with pytest.raises(ProcessError, match="tree/mine can't be removed: a process is still in it"):
        cgroups.remove("mine", 0)


def test_missing_controllers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tree(tmp_path, monkeypatch, "cpu memory")
    assert cgroups.why_not() == "the cgroup controllers cpuset, pids are missing"


def test_versions_of_packages() -> None:
    assert packages.candidates(POLICY) == {"runc": "1.1.5+ds1-1+deb12u1"}


def test_a_machine_without_root_has_no_real_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = support.why_not.__wrapped__()
    assert reason == "they need root (namespaces, mounts, cgroups)"
    monkeypatch.setattr(sandbox, "why_not", lambda: reason)
    output = io.StringIO()
    console = Console(file=output, width=200)
    box = sandbox.Sandbox(tmp_path, console, Show(console), interrupts=None, real=2)  # type: ignore[arg-type]
    assert box.real == 0
    monkeypatch.setattr(sandbox, "missing", _stop)
    with pytest.raises(ProcessError):
        box.boot("nodes", lambda: None)
    assert f"There are fake nodes alone. Real ones can't be had here: {reason}." in output.getvalue()


def _stop(_: object) -> None:
    raise ProcessError("no further")


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ip" else f"/bin/{name}")
    assert support.why_not.__wrapped__() == "ip is not on PATH (Debian: iproute2)"


def test_without_a_cluster_there_is_nothing_to_join(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no cluster in"):
        LocalCluster(tmp_path).start_real_nodes(1)


def test_the_images_are_an_oci_layout(tmp_path: Path) -> None:
    busybox, tar = tmp_path / "busybox", tmp_path / "images.tar"
    busybox.write_bytes(b"a program")
    images.write_images(tar, busybox)
    with tarfile.open(tar) as opened:
        files = {member.name: opened.extractfile(member).read() for member in opened}  # type: ignore[union-attr]
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    index = json.loads(files["index.json"])
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    assert names == [images.IMAGE, images.PAUSE]
    for entry in index["manifests"]:
        manifest = json.loads(files[f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}"])
        (layer,) = manifest["layers"]
        config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'].removeprefix('sha256:')}"])
        assert config["rootfs"]["diff_ids"] == [layer["digest"]]


def test_addresses_of_two_nodes_do_not_meet() -> None:
    first, second = Address(1), Address(2)
    assert (first.subnet, first.node) == ("198.19.1.0/24", "198.19.1.254")
    assert configuration.MACHINE not in {first.node, second.node}
    assert json.loads(configuration.cni(second))["plugins"][0]["ipam"]["ranges"] == [
        [{"subnet": "198.19.2.0/24", "rangeEnd": "198.19.2.250"}]
    ]


def test_the_kubelet_leaves_the_machine_alone() -> None:
    kubelet = configuration.kubelet(Address(7), "mine")
    assert kubelet["cgroupRoot"] == "/mine"
    assert kubelet["address"] == "198.19.7.254"
    assert kubelet["protectKernelDefaults"] is True
    assert kubelet["makeIPTablesUtilChains"] is False
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}


def test_settings_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = Path("/somewhere")
    settings = Settings(
        "real-0",
        "c",
        "l",
        path,
        path,
        path,
        1234,
        ["fake-gpus", "nvidia.com/gpu", "8"],
        {"kubelet": path},
        path,
        path,
        {"k": path},
        [path],
        ["--feature-gates=A=true"],
    )
    file = tmp_path / "settings.json"
    settings.write(file)
    assert Settings.read(file) == settings
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("printed", "holds", "evidence"),
    [
        ([("a", 2, "GPU-0,GPU-1"), ("b", 1, "GPU-2")], True, "3 GPUs in 2 containers"),
        ([("a", 2, "GPU-0,GPU-1"), ("b", 1, "GPU-1")], False, "n GPU-1"),
        ([("a", 2, "GPU-0")], False, "a"),
        ([], False, "0 GPUs in 0 containers"),
    ],
)
def test_the_claim_about_containers(printed: list[tuple[str, int, str]], holds: bool, evidence: str) -> None:
    claim = check(
        [Printed(pod, "n", gpus_asked, tuple(gpus.split(","))) for pod, gpus_asked, gpus in printed]
    )
    assert (claim.holds, claim.evidence) == (holds, evidence)
