"""Find the files of other projects in their Go modules: CRDs, webhooks and examples, unchanged.

Each module has one version and one checksum here. Go downloads it once into its own cache.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from local_cluster.toolchain import find_go, go_environment

DOWNLOAD_S = 300.0


class ModuleError(RuntimeError):
    """A module could not be had, or is not the one that was expected."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module of one version. `checksum` is the one that its line in a go.sum has."""

    path: str
    version: str
    checksum: str


MODULES = {
    "jobset": Module("sigs.k8s.io/jobset", "v0.12.0", "h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ="),
    "jobset-examples": Module(
        "sigs.k8s.io/jobset", "v0.8.0", "h1:80cJcPld+IMdKFOqzEW4et3Y6lGAPcP8YmBZ+aiKGYA="
    ),
    "lws": Module("sigs.k8s.io/lws", "v0.9.0", "h1:DcJCgxjjoGOx//QHZkeKpyiblxYq70aCRZNYSfykWyI="),
    "training-operator": Module(
        "github.com/kubeflow/training-operator",
        "v1.9.3",
        "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
    ),
    "trainer": Module(
        "github.com/kubeflow/trainer/v2", "v2.2.0", "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg="
    ),
    "mpi-operator": Module(
        "github.com/kubeflow/mpi-operator", "v0.8.0", "h1:22EccUiO4VDooG4TooesdE8o8euGVj89PIRhiP24SRE="
    ),
    "kuberay": Module(
        "github.com/ray-project/kuberay/ray-operator",
        "v1.6.0",
        "h1:1hs7Di2U/vm09ot7MIU8jUqEo7gHDc4gkbv1eFvqCsQ=",
    ),
    "kai": Module(
        "github.com/NVIDIA/KAI-scheduler", "v0.12.0", "h1:3rhB0TdbJYNgOiZ6E0cAa+VJnr4srhoigJI/PkY85vI="
    ),
}
"""All are under the Apache License 2.0. Later modules of JobSet do not have its examples."""


@cache
def folder(name: str) -> Path:
    """Return the read-only folder of a module in Go's cache, downloaded if it is missing.

    Raises:
        ModuleError: Go could not get it, or its checksum is another one.
    """
    module = MODULES[name]
    go = find_go()
    with tempfile.TemporaryDirectory() as empty:
        answer = subprocess.run(
            [str(go), "mod", "download", "-json", f"{module.path}@{module.version}"],
            cwd=empty,
            # the checksum is compared here, so Go needs no second source for it
            env=go_environment(go) | {"GOSUMDB": "off"},
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
        )
    module_info = json.loads(answer.stdout or "{}")
    if answer.returncode != 0 or "Dir" not in module_info:
        raise ModuleError(
            f"{module.path} {module.version}: {module_info.get('Error') or answer.stderr.strip()}"
        )
    if module_info["Sum"] != module.checksum:
        raise ModuleError(
            f"{module.path} {module.version} has the checksum {module_info['Sum']}, not {module.checksum}: "
            f"look at who changed it before you write the new one into {__name__}"
        )
    return Path(module_info["Dir"])
