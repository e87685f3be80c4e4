"""Credentials that can't be used for a while, and how long a server asks to wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.config import ConfigException

from muster.adapters.kube import client as kube
from muster.adapters.kube.client import ApiError, KubeClient, Unreachable
from tests.adapters.fake_api import FakeApi, kubeconfig

PODS = "/api/v1/pods"
LIMIT = {"limit": "1"}

PROBLEMS: dict[str, Exception] = {
    "an empty token file": ConfigException("Token file exists but empty."),
    "none": FileNotFoundError("token"),
    "a plugin that says nothing": ValueError("Expecting value: line 1 column 1"),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
async def test_a_token_that_can_not_be_read_is_read_again(client: KubeClient, problem: Exception) -> None:
    problems: Iterator[Exception] = iter([problem])

    def read_token(_: Any) -> None:
        for error in problems:
            raise error

    client._configuration.refresh_api_key_hook = read_token
    with pytest.raises(Unreachable, match=r"^GET pods: can't use the credentials of .*kubeconfig"):
        await client.get("pods", PODS, LIMIT)
    assert b"PodList" in await client.get("pods", PODS, LIMIT)


async def test_a_kubeconfig_that_is_half_written_is_read_again(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "CREDENTIALS_RELOAD_AFTER_S", 0.0)
    api.failing = [401, 401]
    async with api.running() as port:
        path = tmp_path / "kubeconfig"
        async with KubeClient(kubeconfig(tmp_path, port)) as client:
            path.write_text("")
            with pytest.raises(Unreachable, match=r"^GET pods: can't use the credentials of .*kubeconfig"):
                await client.get("pods", PODS, LIMIT)
            kubeconfig(tmp_path, port)
            with pytest.raises(ApiError, match="GET pods: 401"):
                await client.get("pods", PODS, LIMIT)
            assert b"PodList" in await client.get("pods", PODS, LIMIT)


SECONDS = {"7": 7.0, "0": 0.0, "-1": None, "soon": None, "": None, "\u00b2": None, "9" * 400: float("inf")}


@pytest.mark.parametrize(("header", "seconds"), SECONDS.items(), ids=map(ascii, SECONDS))
async def test_how_long_a_server_asks_to_wait(
    api: FakeApi, client: KubeClient, header: str, seconds: float | None
) -> None:
    api.failing, api.retry_after = [429], header
    with pytest.raises(ApiError) as refused:
        await client.get("pods", PODS, LIMIT)
    assert refused.value.retry_after == seconds


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ({"HTTP_PROXY": "http://proxy:3128"}, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "other,.cluster.local"}, None),
    ],
)
def test_the_proxy_is_the_environments(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], proxy: str | None
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert kube.environments_proxy("https://api.cluster.local:6443") == proxy
