"""Tokens and certificates change while the client runs: their files are read again, without a restart."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from kubernetes.aio.config import incluster_config

from local_cluster.certificates import Authority
from local_cluster.patience import HANG_S
from muster.adapters.kube import client as kube
from muster.adapters.kube.client import ApiError, KubeClient, Unreachable
from tests.adapters.fake_api import FakeApi

PODS, LIMIT = "/api/v1/pods", {"limit": "1"}
HOST = "127.0.0.1"


class Files:
    """The files of an account as the kubelet writes them, and certificates of a server."""

    def __init__(self, folder: Path) -> None:
        self.token, self.authority = folder / "token", folder / "ca.crt"
        self._folder = folder

    def trust(self, name: str) -> None:
        self.authority.write_bytes(self._made(name).pair.certificate.read_bytes())

    def served_by(self, name: str) -> ssl.SSLContext:
        pair = self._made(name).issue("server", "server", serves=(HOST,))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    def _made(self, name: str) -> Authority:
        (folder := self._folder / name).mkdir(exist_ok=True)
        return Authority.create(folder, "ca")


Connect = Callable[[int], KubeClient]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    new_files = Files(tmp_path)
    new_files.token.write_text("first")
    new_files.trust("a")
    return new_files


@pytest.fixture(params=["the pod's account", "a kubeconfig"])
def connect(
    request: pytest.FixtureRequest, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Connect:
    """Make a client that takes its credentials from the files. They are read again at once."""
    monkeypatch.setattr(kube, "CREDENTIALS_RELOAD_AFTER_S", 0.0)

    def by_kubeconfig(port: int) -> KubeClient:
        cluster = {"server": f"https://{HOST}:{port}", "certificate-authority": str(files.authority)}
        document = {
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"tokenFile": str(files.token)}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(document))
        return KubeClient(str(path))

    def by_pod(port: int) -> KubeClient:
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(files.token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(files.authority))
        for key, value in {"HOST": HOST, "PORT": str(port)}.items():
            monkeypatch.setenv(f"KUBERNETES_SERVICE_{key}", value)
        monkeypatch.setenv("KUBECONFIG", "")
        monkeypatch.setenv("HOME", str(tmp_path))
        return KubeClient()

    return by_kubeconfig if request.param == "a kubeconfig" else by_pod


async def test_a_token_that_was_replaced_is_read_after_the_first_refusal(
    api: FakeApi, files: Files, connect: Connect
) -> None:
    async with api.running(tls=files.served_by("a")) as port, connect(port) as client:
        await client.get("pods", PODS, LIMIT)
        files.token.write_text("second")
        api.failing = [401]
        with pytest.raises(ApiError, match="401"):
            await client.get("pods", PODS, LIMIT)
        await client.get("pods", PODS, LIMIT)
    assert [header.lower() for header in api.credentials] == ["bearer first"] * 2 + ["bearer second"]


async def test_a_watch_is_broken_off_when_the_files_are_read_again(
    api: FakeApi, files: Files, connect: Connect
) -> None:
    """It would stand on a connection that is closed, and say nothing more."""
    async with api.running(tls=files.served_by("a")) as port, connect(port) as client:

        async def read() -> None:
            async with client.watch("pods", PODS, {"watch": "true"}, HANG_S * 2) as batches:
                api.failing = [401]
                with pytest.raises(ApiError, match="401"):
                    await client.get("pods", PODS, LIMIT)
                async for _ in batches:
                    pass

        with pytest.raises(Unreachable, match="WATCH pods"):
            await asyncio.wait_for(read(), HANG_S)


async def test_a_server_of_a_new_authority_is_trusted_once_the_file_names_it(
    api: FakeApi, files: Files, connect: Connect
) -> None:
    async with AsyncExitStack() as stack:
        async with api.running(tls=files.served_by("a")) as port:
            client = await stack.enter_async_context(connect(port))
            await client.get("pods", PODS, LIMIT)
        await stack.enter_async_context(api.running(port, tls=files.served_by("b")))

        async def refuses() -> None:
            with pytest.raises(Unreachable, match=r"(?i)certificate"):
                await client.get("pods", PODS, LIMIT)

        await refuses()
        files.authority.write_text("")  # half written
        await refuses()
        files.trust("b")
        await refuses()  # and then the file is read
        await client.get("pods", PODS, LIMIT)
