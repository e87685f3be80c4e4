"""The files of a project and its controller are of one version, by one checksum."""

from __future__ import annotations

import pytest

from local_cluster import modules
from local_cluster.modules import MODULES, Module, ModuleError
from local_cluster.places import GO_MODULES


@pytest.mark.parametrize("name", ["jobset", "lws"])
def test_a_controller_is_built_from_the_module_whose_files_are_read(name: str) -> None:
    module = MODULES[name]
    line = f"{module.path} {module.version} {module.checksum}"
    assert line in (GO_MODULES / name / "go.sum").read_text().splitlines()


@pytest.mark.go
def test_another_checksum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MODULES["kuberay"]
    monkeypatch.setitem(modules.MODULES, "other", Module(real.path, real.version, "h1:other="))
    with pytest.raises(ModuleError, match="has the checksum h1:1hs7Di2U"):
        modules.folder("other")
