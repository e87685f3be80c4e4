"""`make next` builds the same programs from the next Kubernetes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster import next_module
from local_cluster.patience import HANG_S
from local_cluster.places import GO_MODULES, SHIM
from local_cluster.recipes import KUBERNETES, NEXT_KUBERNETES, RECIPES

KEYS = """
import json
from local_cluster.recipes import RECIPES
print(json.dumps({name: recipe.key() for name, recipe in RECIPES.items()}))
"""
OF_NEXT = {"kube-apiserver", "kube-controller-manager", "shim"}


def test_the_shim_and_the_control_plane_are_of_the_next_release() -> None:
    """Every other program is the one that the cluster has without it."""
    printed = subprocess.run(
        [sys.executable, "-c", KEYS],
        env=os.environ | {"MUSTER_NEXT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    keys = json.loads(printed.stdout)
    changed = {name for name, recipe in RECIPES.items() if recipe.key() != keys[name]}
    assert changed == OF_NEXT
    assert all(keys[name].startswith(f"{name}-{NEXT_KUBERNETES}-") for name in OF_NEXT)


@pytest.mark.parametrize(
    "module", [SHIM, GO_MODULES / "kube-apiserver", GO_MODULES / "kube-controller-manager"]
)
def test_next_mod_names_what_go_mod_names(module: Path) -> None:
    """A dependency that is new in go.mod is not forgotten in next.mod."""
    texts = [(module / name).read_text() for name in ("go.mod", "next.mod")]
    ours, of_next = (set(re.findall(r"(?m)^(?:tool |\t)(\S+)(?: v\S+)?$", text)) for text in texts)
    assert ours == of_next
    assert [re.findall(r"k8s.io/kubernetes (v\S+)", text) for text in texts] == [
        [KUBERNETES],
        [NEXT_KUBERNETES],
    ]


def test_packages_move_to_the_new_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    for package in next_module.PACKAGES:
        (source / package).mkdir(parents=True)
        (source / package / "types.go").write_text('import "k8s.io/apiextensions-apiserver/pkg/client"\n')
        (source / package / "types_test.go").write_text("")
        (source / package / "conversion.go").write_text("")
    monkeypatch.setattr(next_module, "FOLDER", tmp_path / "copy")
    next_module.copy(source)
    folder = tmp_path / "copy"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file()}
    literals = {f"{api}/literals.go" for api in next_module.APIS}
    assert files == {"go.mod", *literals, *(f"{package}/types.go" for package in next_module.PACKAGES)}
    copied = (folder / next_module.PACKAGES[0] / "types.go").read_text()
    assert copied == 'import "k8s.io/apiextensions-api/pkg/client"\n'
