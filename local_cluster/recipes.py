"""What each binary is built from, and the key under which it is cached."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster.modules import MODULES
from local_cluster.places import GO_MODULES, SHIM, cache_root
from local_cluster.toolchain import GO_MINOR, NEXT_GO_MINOR

KUBERNETES = "v1.37.1"
NEXT_KUBERNETES = "v1.38.0-beta.0"
IS_NEXT = bool(os.environ.get("MUSTER_NEXT"))
"""The shim and the control plane are those of NEXT_KUBERNETES (`make next`)."""
CONTAINERD = "v2.3.5"
COLLECTOR = "v0.162.0"
PROMETHEUS = "v3.15.0"
_STAMP = "-X k8s.io/component-base/version.gitVersion="


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one binary is built: `go build <package>` in `module`.

    `cold_build` is what a build with nothing cached took on two cores, downloads included (README); `cold_s`
    is the same in seconds, after the recipes before it. `modfile` is the go.mod file, whose go.sum file has
    the same stem; `go` is the minor version of Go.
    """

    name: str
    version: str
    module: Path
    package: str
    ldflags: str
    cold_build: str
    cold_s: float = 0.0
    tags: str = ""
    modfile: str = "go.mod"
    go: str = GO_MINOR

    def key(self) -> str:
        """Folder name in the cache: version and a hash of all that decides what comes out.

        For the four components the locked versions in go.mod and go.sum say it all; the shim is our
        own code, so its sources are hashed.
        """
        tags = f"{self.tags}\n" if self.tags else ""
        digest = hashlib.sha256(f"{self.package}\n{self.ldflags}\n{platform.machine()}\n{tags}".encode())
        for path in sorted(self._inputs()):
            digest.update(f"{path.relative_to(self.module)}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"

    def is_built(self) -> bool:
        """Whether the cache has the binary."""
        return (cache_root() / "bin" / self.key() / self.name).is_file()

    def _inputs(self) -> Iterator[Path]:
        modfile = self.module / self.modfile
        yield from (modfile, modfile.with_suffix(".sum"))
        for path in self.module.rglob("*"):
            # testdata and tests are no part of the binary: editing them builds nothing
            if path.suffix == ".go" and not path.name.endswith("_test.go") and "testdata" not in path.parts:
                yield path


def _kubernetes(name: str, module: Path, package: str, cold_build: str, cold_s: float) -> Recipe:
    """A program of Kubernetes, of the next release if that is tried."""
    if not IS_NEXT:
        return Recipe(name, KUBERNETES, module, package, _STAMP + KUBERNETES, cold_build, cold_s)
    stamp = _STAMP + NEXT_KUBERNETES
    return Recipe(
        name, NEXT_KUBERNETES, module, package, stamp, cold_build, cold_s, "next", "next.mod", NEXT_GO_MINOR
    )


def _containerd(program: str, cold_build: str, cold_s: float) -> Recipe:
    package = f"github.com/containerd/containerd/v2/cmd/{program}"
    stamp = f"-X github.com/containerd/containerd/v2/version.Version={CONTAINERD}"
    return Recipe(program, CONTAINERD, GO_MODULES / "containerd", package, stamp, cold_build, cold_s)


def _prometheus(program: str, cold_build: str, cold_s: float) -> Recipe:
    package = f"github.com/prometheus/prometheus/cmd/{program}"
    tags = "remove_all_sd,netgo"
    return Recipe(program, PROMETHEUS, GO_MODULES / "prometheus", package, "", cold_build, cold_s, tags=tags)


def _controller(name: str, package: str, cold_build: str, cold_s: float) -> Recipe:
    module = MODULES[name]
    return Recipe(name, module.version, GO_MODULES / name, f"{module.path}{package}", "", cold_build, cold_s)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("etcd", "v3.7.1", GO_MODULES / "etcd", "go.etcd.io/etcd/server/v3", "", "1 min", 50.0),
        _kubernetes(
            "kube-apiserver",
            GO_MODULES / "kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "5 to 9 min",
            420.0,
        ),
        _kubernetes(
            "kube-controller-manager",
            GO_MODULES / "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "2 min after kube-apiserver",
            120.0,
        ),
        Recipe("kwok", "v0.8.0", GO_MODULES / "kwok", "sigs.k8s.io/kwok/cmd/kwok", "", "90 s", 90.0),
        _kubernetes("shim", SHIM, ".", "15 to 60 s after the others", 40.0),
        Recipe(
            "kubelet",
            KUBERNETES,
            GO_MODULES / "kubelet",
            "k8s.io/kubernetes/cmd/kubelet",
            _STAMP + KUBERNETES,
            "2 min after the others",
            120.0,
        ),
        _containerd("containerd", "2 to 3 min", 150.0),
        _containerd("containerd-shim-runc-v2", "10 s after containerd", 10.0),
        _containerd("ctr", "10 s after containerd", 10.0),
        Recipe("fake-gpus", "v1", GO_MODULES / "fake-gpus", ".", "", "10 s after kubelet", 10.0),
        Recipe("fake-dra-driver", "v1", GO_MODULES / "fake-dra-driver", ".", "", "10 s after kubelet", 10.0),
        Recipe("otel-collector", COLLECTOR, GO_MODULES / "otel-collector", ".", "", "90 s to 6 min", 90.0),
        _prometheus("promtool", "2 to 8 min", 120.0),
        _prometheus("prometheus", "90 s after promtool", 90.0),
        Recipe("helm", "v4.3.1", GO_MODULES / "helm", "helm.sh/helm/v4/cmd/helm", "", "2 min", 120.0),
        _controller("jobset", "", "8 min on a busy machine", 490.0),
        _controller("lws", "/cmd", "4 min on a busy machine", 210.0),
    )
}
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kwok")
CLUSTER = (*COMPONENTS, "shim")
"""What a cluster with fake nodes and Muster needs."""
NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "fake-gpus", "fake-dra-driver")
"""What a real node needs besides."""
TRACING = ("otel-collector",)
"""What traces need besides."""


def missing(names: Sequence[str] = CLUSTER) -> list[Recipe]:
    """Return the recipes whose binaries are not in the cache, in the order in which they are built."""
    return [RECIPES[name] for name in names if not RECIPES[name].is_built()]
