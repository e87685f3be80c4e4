"""What the adapters' tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from muster.adapters.kube.client import KubeClient
from tests.adapters.fake_api import FakeApi, kubeconfig


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a unix socket's 107 bytes, which tmp_path may not."""
    folder = Path(tempfile.mkdtemp(prefix="muster-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def client(api: FakeApi, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """Connected to `api`."""
    async with api.running() as port, KubeClient(kubeconfig(tmp_path, port)) as connected:
        yield connected
