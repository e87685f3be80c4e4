"""Tokens of the page, with a real API server: the rights of page-tokens/rbac.yaml, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import LocalCluster
from muster.adapters.kube.client import KubeClient
from muster.adapters.page.access import Access, TokenAnswer
from tests.local_cluster.cluster_waiting import eventually
from tests.manifests.applying import apply
from tests.manifests.rendering import SCHEDULER_CONFIG

pytestmark = pytest.mark.cluster

ASKER, READER, STRANGER = "page/asker", "page/reader", "page/stranger"


def bound(role: str, account: str) -> dict[str, Any]:
    namespace, _, name = account.partition("/")
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{role}-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }


def token(kubeconfig: Path) -> str:
    (user,) = yaml.safe_load(kubeconfig.read_text())["users"]
    return str(user["user"]["token"])


async def answers(kubeconfig: Path, *tokens: str) -> list[TokenAnswer]:
    async with KubeClient(str(kubeconfig)) as client:
        access = Access(client.post)
        return [await access.check(f"Bearer {token}") for token in tokens]


async def test_readers_may_see_the_page_and_no_others(cluster: LocalCluster, client: Any) -> None:
    kubeconfigs = {account: cluster.kubeconfig_for(account) for account in (ASKER, READER, STRANGER)}
    tokens = [token(kubeconfigs[READER]), token(kubeconfigs[STRANGER]), "made-up"]
    assert await answers(kubeconfigs[ASKER], *tokens) == [TokenAnswer.UNAVAILABLE] * 3, "it has no rights yet"
    for manifest in yaml.safe_load_all((SCHEDULER_CONFIG / "page-tokens" / "rbac.yaml").read_text()):
        apply(client, manifest)
    apply(client, bound("muster-service-page", ASKER))
    apply(client, bound("muster-page-reader", READER))
    eventually(lambda: _may_see(client, READER), "the reader's role has been taken up")
    expected = [TokenAnswer.ALLOWED, TokenAnswer.FORBIDDEN, TokenAnswer.UNKNOWN]
    assert await answers(kubeconfigs[ASKER], *tokens) == expected


def _may_see(client: Any, account: str) -> bool:
    namespace, _, name = account.partition("/")
    reviews = client.resources.get(api_version="authorization.k8s.io/v1", kind="SubjectAccessReview")
    spec = {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "nonResourceAttributes": {"path": "/muster/page", "verb": "get"},
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(reviews.create(body=body).status.allowed)
