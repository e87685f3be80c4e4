"""Where things lie: the files of this folder, the cache of built binaries, the state of clusters.

One module, so that no other one spells out a folder, and a test can move all of them by environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
"""This folder of the checkout. The shim's sources are in the folder next to it."""

GO_MODULES = SOURCE / "go"
TOPOLOGIES = SOURCE / "topologies"
SHIM = SOURCE.parent / "shim"
KWOK_STAGES = SOURCE / "kwok_stages.yaml"
LAUNCHER = SOURCE / "launcher.py"


def _base(variable: str, default: str) -> Path:
    """An XDG base directory; the specification says that relative values are to be ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default


def cache_root() -> Path:
    """What can be made again: built binaries and, on a machine without Go, Go itself."""
    return _base("XDG_CACHE_HOME", ".cache") / "muster"


def default_cluster_directory(name: str) -> Path:
    """Where `muster cluster up NAME` keeps its cluster."""
    return _base("XDG_STATE_HOME", ".local/state") / "muster" / "clusters" / name


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path inside one cluster's directory. All of a cluster is in there, and nothing else is."""

    root: Path

    @property
    def state(self) -> Path:
        """Ports and options, JSON; its presence marks the directory as a cluster's."""
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        """The file that a running `up` or `down` locks."""
        return self.root / "lock"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def etcd_data(self) -> Path:
        """etcd's data."""
        return self.root / "etcd"

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log."""
        return self.root / "logs" / "audit.jsonl"

    @property
    def config(self) -> Path:
        """Files that a component reads: kwok's stages, the audit policy."""
        return self.root / "config"

    @property
    def run(self) -> Path:
        """PID files."""
        return self.root / "run"

    @property
    def kubeconfigs(self) -> Path:
        """Kubeconfigs of components and service accounts."""
        return self.root / "kubeconfigs"

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.logs / f"{name}.log"

    def pid_file(self, name: str) -> Path:
        """Return the PID file of a process."""
        return self.run / f"{name}.json"

    def kubeconfig(self, user: str) -> Path:
        """Return the kubeconfig of a user."""
        return self.kubeconfigs / f"{user.replace('/', '.').replace(':', '.')}.kubeconfig"

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that `make` creates inside the root."""
        return (self.pki, self.logs, self.config, self.run, self.kubeconfigs, self.etcd_data)

    def make(self) -> None:
        """Create the folders, readable by the owner alone: keys and tokens lie in them."""
        for folder in (self.root, *self.folders):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
