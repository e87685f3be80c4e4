"""Make the one module of Kubernetes 1.38.0-beta.0 that not every module proxy has (`make next`).

    python -m local_cluster.next_module

Kubernetes 1.38 moves the types and clients of CustomResourceDefinitions from k8s.io/apiextensions-apiserver
to k8s.io/apiextensions-api. They are the same as in 1.37, so the packages of 1.37 are copied under the new
path. next.mod of the API server and of the controller manager names the copy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from local_cluster.places import GO_MODULES, SOURCE
from local_cluster.toolchain import NEXT_GO_MINOR, find_go, go_environment

SOURCE_MODULE = "k8s.io/apiextensions-apiserver"
MODULE = "k8s.io/apiextensions-api"
FOLDER = SOURCE.parent / "out" / "apiextensions-api"
APIS = ("pkg/apis/apiextensions/v1", "pkg/apis/apiextensions/v1beta1")
PACKAGES = (*APIS, "pkg/client")
LEFT_OUT = ("*_test.go", "clientset_test", "conversion.go", "zz_generated.conversion.go")
"""Tests, and conversions to internal types: 1.38 has these conversions in the old module. The other files
need one variable of them."""


def main() -> None:
    """Copy the packages of the version in go.mod, which Go compares with go.sum."""
    go = find_go()
    answer = subprocess.run(
        [str(go), "mod", "download", "-json", SOURCE_MODULE],
        cwd=GO_MODULES / "kube-apiserver",
        env=go_environment(go),
        stdout=subprocess.PIPE,
        check=True,
    )
    copy(Path(json.loads(answer.stdout)["Dir"]))
    print(FOLDER)


def copy(source: Path) -> None:
    """Copy the packages of a folder, and write go.mod."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(
            source / package,
            FOLDER / package,
            ignore=shutil.ignore_patterns(*LEFT_OUT),
            copy_function=_copy_with_new_paths,
        )
    for api in APIS:
        package = api.rpartition("/")[2]
        (FOLDER / api / "literals.go").write_text(f'package {package}\n\nvar nullLiteral = []byte("null")\n')
    (FOLDER / "go.mod").write_text(f"module {MODULE}\n\ngo {NEXT_GO_MINOR}.0\n")


def _copy_with_new_paths(source: str, target: str) -> None:
    text = Path(source).read_text().replace(f"{SOURCE_MODULE}/", f"{MODULE}/")
    Path(target).write_text(text.replace("structured-merge-diff/v6/", "structured-merge-diff/v7/"))


if __name__ == "__main__":
    main()
